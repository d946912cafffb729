//! The database file: its lock, its format, and the only SQL there is. One row per operation, appended; a row leaves
//! when nothing refers to it. What the rows mean together is decided in `state` and `history`.

use std::{
    collections::HashMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use super::{
    Options,
    error::{Error, Holder, WriteError},
    fields::IndexedFields,
    history::{Change, Event, Forgotten},
    lock::{Lock, private_file},
    object::{Collection, Key, Stored},
    state::{Deleted, State},
};

/// "Trrn", so that `file` and we recognize the database.
const APPLICATION_ID: u32 = 0x5472_726e;
/// Grows with every change that an older version could not read.
const FORMAT: u32 = 1;

const SCHEMA: &str = "
    CREATE TABLE collections (
        id INTEGER PRIMARY KEY,
        api_group TEXT NOT NULL,
        plural TEXT NOT NULL,
        -- Events up to here are forgotten: rows at or below it are objects, not history.
        floor INTEGER NOT NULL DEFAULT 0,
        UNIQUE (api_group, plural)
    ) STRICT;
    CREATE TABLE revisions (
        revision INTEGER PRIMARY KEY,
        collection INTEGER NOT NULL REFERENCES collections (id),
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        deleted INTEGER NOT NULL,
        value BLOB NOT NULL
    ) STRICT;
    -- The newest revision when rows were last removed, because the newest row may be among them.
    CREATE TABLE counter (revision INTEGER NOT NULL) STRICT;
    INSERT INTO counter VALUES (0);
";

/// Pages given back to the file system at a time, and free pages below which it is not worth the copying.
const SHRINK_PAGES: i64 = 512;

/// What readers see at start, and the rows that may leave the disk.
type Loaded = (State, Forgotten);

pub(super) struct Disk {
    path: Arc<PathBuf>,
    connection: Connection,
    collections: HashMap<Collection, Row>,
    /// Held as long as the connection is, so that no other process opens the file.
    _lock: Lock,
}

/// What the disk knows of a collection.
#[derive(Debug, Clone, Copy)]
struct Row {
    id: i64,
    floor: u64,
}

/// Whether there is more of the same to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    Done,
}

/// Locks, opens or creates, checks and reads the database. O(rows).
pub(super) fn open(path: &Path, options: &Options) -> Result<(Disk, State, Forgotten), Error> {
    let lock = Lock::take(path)?;
    let connection = connect(path, options)?;
    let mut disk = Disk { path: Arc::new(path.into()), connection, collections: HashMap::new(), _lock: lock };
    let (state, forgotten) = disk.load(options)?;
    Ok((disk, state, forgotten))
}

fn connect(path: &Path, options: &Options) -> Result<Connection, Error> {
    let sql = |error| sqlite_error(path, error);
    private_file(path).map_err(|source| io_error(path, source))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(sql)?;
    connection.busy_timeout(Duration::from_secs(1)).map_err(sql)?;
    if connection.is_readonly("main").map_err(sql)? {
        return Err(Error::ReadOnly { path: path.into() });
    }
    // Exclusive before the first access keeps the index of the write-ahead log in memory, and others out.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(sql)?;
    let created = check_format(&connection, path)?;
    if created == Created::Now {
        // Must precede the first table; free pages can then be given back without copying the whole file.
        // An existing file has it, and setting it again would be a write, which a full disk cannot take at start.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(sql)?;
    }
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(sql)?;
    if mode != "wal" {
        let what = format!("its journal mode is {mode}, not wal");
        return Err(Error::Damaged { path: path.into(), what });
    }
    connection.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20).map_err(sql)?;
    connection.pragma_update(None, "cache_size", -4096).map_err(sql)?;
    if created == Created::Now {
        create(&mut connection).map_err(sql)?;
        // So that the file itself is still there after a power cut, not only what is in it.
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(|e| io_error(path, e))?;
    }
    if let Some(bytes) = options.max_file_bytes {
        let page_size: u64 = connection.pragma_query_value(None, "page_size", integer).map_err(sql)?;
        let pages = i64::try_from(bytes / page_size.max(1)).unwrap_or(i64::MAX);
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).map_err(sql)?;
    }
    Ok(connection)
}

/// Whether the file held a database before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Created {
    Before,
    Now,
}

fn check_format(connection: &Connection, path: &Path) -> Result<Created, Error> {
    let pragma = |name| connection.pragma_query_value(None, name, integer).map_err(|e| sqlite_error(path, e));
    let (application, format) = (pragma("application_id")?, pragma("user_version")?);
    if application == u64::from(APPLICATION_ID) {
        let found = u32::try_from(format).unwrap_or(u32::MAX);
        return match found {
            FORMAT => Ok(Created::Before),
            _ if found > FORMAT => Err(Error::Newer { path: path.into(), found, known: FORMAT }),
            _ => Err(Error::Damaged { path: path.into(), what: format!("its format is {found}") }),
        };
    }
    let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| integer_at(row, 0));
    let tables = tables.map_err(|error| sqlite_error(path, error))?;
    if application == 0 && format == 0 && tables == 0 {
        Ok(Created::Now)
    } else {
        Err(Error::Foreign { path: path.into() })
    }
}

/// In one transaction, so that a crash leaves an empty file or a whole database.
fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(SCHEMA)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()
}

impl Disk {
    pub(super) fn path(&self) -> &Arc<PathBuf> {
        &self.path
    }

    /// Appends a row for each event and removes the rows of `garbage`, which must be what the history of `state` or of
    /// a state before it has let go. Atomic, and durable when it returns.
    pub(super) fn append(
        &mut self,
        events: &[Arc<Event>],
        state: &State,
        garbage: impl ExactSizeIterator<Item = u64>,
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Remembered only after the commit: ids of collections that were rolled back mean nothing.
        let mut changed = HashMap::new();
        for event in events {
            let collection = &event.object.key.collection;
            let row = match changed.get(collection).or_else(|| self.collections.get(collection)) {
                Some(row) => *row,
                None => {
                    let row = insert_collection(&transaction, collection)?;
                    changed.insert(collection.clone(), row);
                    row
                }
            };
            insert(&transaction, row, event)?;
        }
        if garbage.len() > 0 {
            for (collection, floor) in state.history.floors() {
                let known = changed.get(collection).or_else(|| self.collections.get(collection)).copied();
                if let Some(row) = known.filter(|row| row.floor < floor) {
                    let sql = "UPDATE collections SET floor = ?2 WHERE id = ?1";
                    transaction.prepare_cached(sql)?.execute((row.id, signed(floor)))?;
                    changed.insert(collection.clone(), Row { floor, ..row });
                }
            }
            let mut delete = transaction.prepare_cached("DELETE FROM revisions WHERE revision = ?1")?;
            for revision in garbage {
                delete.execute([signed(revision)])?;
            }
            let mut count = transaction.prepare_cached("UPDATE counter SET revision = ?1")?;
            count.execute([signed(state.snapshot.revision())])?;
        }
        transaction.commit()?;
        self.collections.extend(changed);
        Ok(())
    }

    /// The newest revision that the disk holds.
    pub(super) fn newest_revision(&self) -> rusqlite::Result<u64> {
        let sql =
            "SELECT max(counter.revision, coalesce((SELECT max(revision) FROM revisions), 0)) FROM counter";
        self.connection.query_row(sql, [], |row| integer_at(row, 0))
    }

    /// Gives some of the free pages back to the file system, if they are many: a quarter of the file stays free, since
    /// it will be filled again.
    pub(super) fn shrink(&self) -> rusqlite::Result<Progress> {
        let pragma = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (free, all) = (pragma("freelist_count")?, pragma("page_count")?);
        let surplus = free - all / 4;
        if surplus < SHRINK_PAGES {
            return Ok(Progress::Done);
        }
        // Each step frees one page, so the statement has to be read to its end.
        let mut vacuum = self.connection.prepare_cached("PRAGMA incremental_vacuum(512)")?;
        let mut steps = vacuum.query([])?;
        while steps.next()?.is_some() {}
        Ok(Progress::More)
    }

    /// Writes the log back into the file, so that one file is all there is to copy.
    pub(super) fn close(self) {
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(path = %self.path.display(), %error, "the database was not closed cleanly; nothing is lost");
        }
    }

    fn load(&mut self, options: &Options) -> Result<Loaded, Error> {
        let path = Arc::clone(&self.path);
        let (mut state, mut forgotten) = (State::new(&options.indexed), Forgotten::default());
        let known = self.load_collections().map_err(|error| sqlite_error(&path, error))?;
        for (collection, row) in known.values() {
            state.history.set_floor(collection, row.floor);
        }
        self.load_revisions(&known, &options.indexed, |row, deleted, floor| {
            let collection = row.key.collection.clone();
            state.replay(row, deleted);
            state.history.forget_collection_through(&collection, floor, &mut forgotten);
            state.history.bound([&collection], options.history_events, options.history_bytes, &mut forgotten);
        })?;
        self.collections = known.into_values().collect();
        state.snapshot.advance_to(self.newest_revision().map_err(|error| sqlite_error(&path, error))?);
        Ok((state, forgotten))
    }

    fn load_collections(&self) -> rusqlite::Result<HashMap<i64, (Collection, Row)>> {
        let mut select = self.connection.prepare("SELECT id, api_group, plural, floor FROM collections")?;
        let rows = select.query_map([], |row| {
            let collection = Collection::new(row.get_ref(1)?.as_str()?, row.get_ref(2)?.as_str()?);
            let id = row.get(0)?;
            Ok((id, (collection, Row { id, floor: integer_at(row, 3)? })))
        })?;
        rows.collect()
    }

    /// Hands every row to `each`, in order, with the floor of its collection.
    fn load_revisions(
        &self,
        known: &HashMap<i64, (Collection, Row)>,
        fields: &IndexedFields,
        mut each: impl FnMut(Stored, Deleted, u64),
    ) -> Result<(), Error> {
        let sql_error = |error| sqlite_error(&self.path, error);
        let damaged = |what| Error::Damaged { path: self.path.to_path_buf(), what };
        let sql =
            "SELECT revision, collection, namespace, name, deleted, value FROM revisions ORDER BY revision";
        let mut select = self.connection.prepare(sql).map_err(sql_error)?;
        let mut rows = select.query([]).map_err(sql_error)?;
        // Neighbours are mostly of one namespace and can share its string.
        let mut namespace: Arc<str> = "".into();
        while let Some(row) = rows.next().map_err(sql_error)? {
            let revision = integer_at(row, 0).map_err(sql_error)?;
            let text = |at| row.get_ref(at).and_then(|value| Ok(value.as_str()?)).map_err(sql_error);
            let collection: i64 = row.get(1).map_err(sql_error)?;
            let (collection, Row { floor, .. }) = known
                .get(&collection)
                .ok_or_else(|| damaged(format!("revision {revision} belongs to no collection")))?;
            if *namespace != *text(2)? {
                namespace = text(2)?.into();
            }
            let key = Key {
                collection: collection.clone(),
                namespace: Arc::clone(&namespace),
                name: text(3)?.into(),
            };
            let deleted = if row.get(4).map_err(sql_error)? { Deleted::Yes } else { Deleted::No };
            let bytes = row.get_ref(5).and_then(|value| Ok(value.as_blob()?)).map_err(sql_error)?;
            let stored = Stored::from_bytes(key.clone(), revision, bytes, fields)
                .map_err(|error| damaged(format!("{key} at revision {revision} is not readable: {error}")))?;
            each(stored, deleted, *floor);
        }
        Ok(())
    }
}

fn insert_collection(transaction: &Transaction<'_>, collection: &Collection) -> rusqlite::Result<Row> {
    let sql = "INSERT INTO collections (api_group, plural) VALUES (?1, ?2) RETURNING id";
    let id = transaction.query_row(sql, (&*collection.group, &*collection.plural), |row| row.get(0))?;
    Ok(Row { id, floor: 0 })
}

fn insert(transaction: &Transaction<'_>, row: Row, event: &Event) -> rusqlite::Result<()> {
    let key = &event.object.key;
    let deleted = match event.change {
        Change::Added | Change::Modified => false,
        Change::Deleted => true,
    };
    let sql = "INSERT INTO revisions (revision, collection, namespace, name, deleted, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let values =
        (signed(event.revision), row.id, &*key.namespace, &*key.name, deleted, &*event.object.bytes());
    transaction.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

/// SQLite counts to 2^63; at a million writes a second that is three hundred thousand years.
fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

fn integer(row: &rusqlite::Row<'_>) -> rusqlite::Result<u64> {
    integer_at(row, 0)
}

fn integer_at(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(at)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(at, value))
}

pub(super) fn io_error(path: &Path, source: io::Error) -> Error {
    let path = path.into();
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => Error::ReadOnly { path },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { path },
        _ => Error::Io { path, source },
    }
}

fn sqlite_error(path: &Path, source: rusqlite::Error) -> Error {
    let path = path.into();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::InUse { path, holder: Holder::Unknown }
        }
        Some(ErrorCode::ReadOnly) => Error::ReadOnly { path },
        Some(ErrorCode::DiskFull) => Error::Full { path },
        Some(ErrorCode::NotADatabase) => Error::Foreign { path },
        Some(ErrorCode::DatabaseCorrupt) => Error::Damaged { path, what: source.to_string() },
        _ => Error::Sqlite { path, source },
    }
}

pub(super) fn write_error(path: &Arc<PathBuf>, source: rusqlite::Error) -> WriteError {
    let path = Arc::clone(path);
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => WriteError::Full { path },
        _ => WriteError::Disk { path, source: Arc::new(source) },
    }
}
