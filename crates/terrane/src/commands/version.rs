//! `terrane version`.

pub(crate) fn run() -> anyhow::Result<()> {
    println!("terrane {}", env!("CARGO_PKG_VERSION"));
    Ok(())
}
