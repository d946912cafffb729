//! Comparisons that end a case with the place and both values. No case panics: one failure must not hide the next.

/// Ends the case unless both sides are equal.
macro_rules! same {
    ($got:expr, $wanted:expr) => {{
        let (got, wanted) = (&$got, &$wanted);
        if got != wanted {
            anyhow::bail!(
                "{}:{}: {}\n      wanted {:?}\n      got    {:?}",
                file!(),
                line!(),
                stringify!($got),
                wanted,
                got
            );
        }
    }};
}

/// Ends the case unless the condition holds; the rest says what was seen.
macro_rules! holds {
    ($condition:expr, $($seen:tt)+) => {
        if !$condition {
            anyhow::bail!("{}:{}: {} does not hold: {}", file!(), line!(), stringify!($condition), format!($($seen)+));
        }
    };
}

/// The registry of one subject: each function is a case, named after the subject and itself.
macro_rules! cases {
    ($subject:literal: $($case:ident),+ $(,)?) => {
        /// The cases of this subject.
        pub const CASES: &[$crate::Case] = &[$(
            $crate::Case { name: concat!($subject, "/", stringify!($case)), run: |scope| Box::pin($case(scope)) }
        ),+];
    };
}
