//! `terrane completion`.

use clap::CommandFactory;

pub(crate) fn run(shell: clap_complete::Shell) -> anyhow::Result<()> {
    clap_complete::generate(
        shell,
        &mut crate::arguments::Arguments::command(),
        "terrane",
        &mut std::io::stdout(),
    );
    Ok(())
}
