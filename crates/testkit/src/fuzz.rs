//! Throws damaged input at parsers of what others wrote. Inputs are made from a corpus that is kept in the tree, each by its number:
//! the same number is the same input on every machine, so a failure can be told in one word and repeated.
//!
//! There is no coverage to steer by, as that needs another compiler; what steers is the corpus and its own words. A failing input
//! becomes a file of the corpus, and is then tried first for ever.

use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Enough in every run of the tests; `FUZZ_SECONDS` asks for more.
const USUAL: Duration = Duration::from_millis(1500);
/// No input of this size takes a thousandth of it, on any machine: something is quadratic, or never ends.
const TOO_SLOW: Duration = Duration::from_secs(20);
/// Larger inputs find little that smaller ones do not, and cost much.
const LARGEST: usize = 256 * 1024;

/// What happened.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    /// How many inputs were tried.
    pub inputs: u64,
    /// How many came from the corpus as they are.
    pub corpus: u64,
}

/// What a target is, and where its inputs come from.
#[derive(Debug)]
pub struct Fuzz {
    name: String,
    corpus: Vec<Vec<u8>>,
    failures: PathBuf,
    time: Duration,
    only: Option<u64>,
}

impl Fuzz {
    /// The target whose corpus is `fuzz/corpus/NAME`; it must have one.
    pub fn target(name: &str) -> Result<Self, String> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        #[expect(clippy::disallowed_methods, reason = "a test has no command line of ours to be told on")]
        let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let failures = std::env::temp_dir().join("terrane-fuzz");
        let time = setting("FUZZ_SECONDS").map_or(USUAL, Duration::from_secs);
        Ok(Self { time, only: setting("FUZZ_NUMBER"), ..Self::new(name, &corpus, &failures)? })
    }

    /// A target with a corpus elsewhere.
    pub fn new(name: &str, corpus: &Path, failures: &Path) -> Result<Self, String> {
        let mut files = crate::s3::files_below(corpus);
        files.sort();
        let read = |path: &PathBuf| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let corpus_bytes = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if corpus_bytes.is_empty() {
            return Err(format!("{} holds no input to start from", corpus.display()));
        }
        Ok(Self {
            name: name.to_owned(),
            corpus: corpus_bytes,
            failures: failures.to_owned(),
            time: USUAL,
            only: None,
        })
    }

    /// Tries inputs until the time is over. `check` panics at an input that should have been taken or refused in order.
    pub fn run(&self, mut check: impl FnMut(&[u8])) -> Result<Report, String> {
        fs::create_dir_all(&self.failures)
            .map_err(|error| format!("{}: {error}", self.failures.display()))?;
        let progress = self.failures.join(format!("{}.number", self.name));
        let number_file =
            fs::File::create(&progress).map_err(|error| format!("{}: {error}", progress.display()))?;
        let known = u64::try_from(self.corpus.len()).unwrap_or(u64::MAX);
        if let Some(number) = self.only {
            self.attempt(number, &mut check)?;
            return Ok(Report { inputs: 1, corpus: 0 });
        }
        let mut number = 0;
        // The corpus takes the time that it takes; what comes after it has this much, however busy the machine is.
        let mut end = None;
        while number < known || Instant::now() < *end.get_or_insert_with(|| Instant::now() + self.time) {
            // A stack that overflows takes the process with it, and this is all that it leaves.
            let _ = number_file.write_all_at(format!("{number:020}\n").as_bytes(), 0);
            self.attempt(number, &mut check)?;
            number += 1;
        }
        drop(number_file);
        let _ = fs::remove_file(&progress);
        Ok(Report { inputs: number, corpus: known })
    }

    fn attempt(&self, number: u64, check: &mut impl FnMut(&[u8])) -> Result<(), String> {
        let input = self.input(number);
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&input)));
        let why = match outcome {
            Ok(()) if begun.elapsed() < TOO_SLOW => return Ok(()),
            Ok(()) => format!("took {:?}", begun.elapsed()),
            Err(panic) => panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "panicked".to_owned()),
        };
        let file = self.failures.join(format!("{}-{number}", self.name));
        let kept = match fs::write(&file, &input) {
            Ok(()) => file.display().to_string(),
            Err(error) => format!("nowhere ({error})"),
        };
        Err(format!(
            "{} fails at input {number}, kept in {kept}: {why}\nTry it alone with FUZZ_NUMBER={number}; when it is mended, keep the file in fuzz/corpus/{}.",
            self.name, self.name
        ))
    }

    /// The input of a number: the corpus itself first, then its descendants.
    pub fn input(&self, number: u64) -> Vec<u8> {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        if let Some(known) = self.corpus.get(index) {
            return known.clone();
        }
        let mut dice = Dice::new(number);
        let mut input = dice.pick(&self.corpus).cloned().unwrap_or_default();
        for _ in 0..=dice.below(6) {
            self.damage(&mut input, &mut dice);
            input.truncate(LARGEST);
        }
        input
    }

    fn damage(&self, input: &mut Vec<u8>, dice: &mut Dice) {
        let at = dice.below(input.len() + 1);
        let length = dice.below(input.len() - at + 1);
        let short = length.min(1 + dice.below(64));
        match dice.below(11) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << dice.below(8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = dice.byte();
                }
            }
            2 => input.truncate(at),
            3 => drop(input.drain(at..at + short)),
            4 => drop(input.drain(at..at + length)),
            5 => {
                let piece: Vec<u8> = input.get(at..at + short).unwrap_or_default().to_vec();
                let to = dice.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            // Nesting, and long runs of one thing.
            6 => {
                let piece: Vec<u8> = input.get(at..at + short.min(8)).unwrap_or_default().to_vec();
                let most = if dice.below(16) == 0 { 20_000 } else { 40 };
                let times = 1 + dice.below(most);
                input.splice(at..at, piece.repeat(times));
            }
            7 => {
                let word = dice.pick(WORDS).copied().unwrap_or_default();
                input.splice(at..at, word.iter().copied());
            }
            8 => {
                let word = dice.pick(WORDS).copied().unwrap_or_default();
                input.splice(at..at + short, word.iter().copied());
            }
            9 => {
                let other = dice.pick(&self.corpus).cloned().unwrap_or_default();
                let from = dice.below(other.len() + 1);
                let until = from + dice.below(other.len() - from + 1);
                input.splice(at..at + length, other.get(from..until).unwrap_or_default().iter().copied());
            }
            _ => {
                let number = dice.pick(NUMBERS).copied().unwrap_or_default();
                let digits =
                    input.get(at..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit());
                let digits = digits.count();
                input.splice(at..at + digits, number.bytes());
            }
        }
    }
}

/// What parsers stumble over, whatever they parse.
const WORDS: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\r\n",
    b"\t",
    b"\"",
    b"'",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b"${",
    b"%{",
    b"<<EOT\n",
    b"..",
    b"../",
    b"/",
    b"//",
    b"-",
    b"--",
    b":",
    b",",
    b"=",
    b"#",
    b"/*",
    b"*/",
    b"null",
    b"true",
    b"\xff",
    b"\xc3",
    b"\xe2\x80\xae",
    b"\xef\xbb\xbf",
    b"\xf0\x9f\x92\xa9",
    b"%00",
    b"%2e%2e%2f",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"PK\x03\x04",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"ustar",
];

const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e309",
    "0.1",
    "-0",
    "00000000000",
    "77777777777",
];

/// Numbers that follow from a number.
struct Dice(u64);

impl Dice {
    fn new(number: u64) -> Self {
        Self(number)
    }

    fn next(&mut self) -> u64 {
        // A counter whose bits are stirred: every start gives a series of its own.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % limit).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.next() % 256).unwrap_or(0)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}
