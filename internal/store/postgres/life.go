package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/protocol"
)

// lifeID names one life of the numbering as connections see it: the table that
// says so, which no dump carries over, and what it says.
type lifeID struct {
	table uint32
	epoch protocol.Epoch
}

// memory is what a node remembers outside the database: which data it was
// connected to, how far the server's log and the node's own commits had come.
// Whatever contradicts it is a database in which acknowledged messages may be
// missing.
type memory struct {
	System   string         `json:"system"` // CLUSTER/DATABASE/TABLE, none of which a dump carries over
	Timeline string         `json:"timeline"`
	WAL      uint64         `json:"wal"` // bytes since the start of the log, flushed
	Epoch    protocol.Epoch `json:"epoch"`
	Writer   uuid.UUID      `json:"writer"` // a journal of this node
	Seq      int64          `json:"seq"`    // its last acknowledged batch
	Acked    time.Time      `json:"acked"`  // when that was
}

// journalTrusted is how long after its last use a journal row is certain to be
// there still: trimming removes them later than that, see keepWriters.
const journalTrusted = keepWriters / 2

// sighting is a database as it is found.
type sighting struct {
	table    uint32
	epoch    protocol.Epoch
	recorded struct{ system, timeline string } // when the epoch was last raised or confirmed
	// recordedSync: while the recorded timeline was written, no commit was
	// acknowledged before a synchronous replica had it, as far as nodes saw.
	recordedSync bool

	system, timeline string
	wal              uint64
	sync             bool  // it is so now
	seq              int64 // in the journal that memory names; 0 when there is none
	recovering       bool
}

const sightSQL = `
	SELECT life.tableoid, life.epoch, life.system_id, life.timeline, life.synchronous,
	       (SELECT system_identifier::text FROM pg_control_system()) || '/' ||
	       (SELECT oid::text FROM pg_database WHERE datname = current_database()) || '/' || life.tableoid,
	       CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
	       CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END,
	       current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ('on', 'remote_apply'),
	       coalesce((SELECT w.seq FROM chronocast.writers w WHERE w.id = $1), 0),
	       pg_is_in_recovery()
	FROM chronocast.life`

// bornSQL begins the life of a database that has none yet.
const bornSQL = `
	INSERT INTO chronocast.life (epoch, system_id, timeline) SELECT $1,
	       (SELECT system_identifier::text FROM pg_control_system()) || '/' ||
	       (SELECT oid::text FROM pg_database WHERE datname = current_database()) || '/' || 'chronocast.life'::regclass::oid,
	       substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
	ON CONFLICT DO NOTHING`

// querier is a connection, a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func sight(ctx context.Context, q querier, journal uuid.UUID) (now sighting, err error) {
	var wal, epoch int64
	err = q.QueryRow(ctx, sightSQL, [16]byte(journal)).Scan(&now.table, &epoch, &now.recorded.system, &now.recorded.timeline, &now.recordedSync,
		&now.system, &now.timeline, &wal, &now.sync, &now.seq, &now.recovering)
	now.wal, now.epoch = uint64(wal), protocol.Epoch(epoch)
	return now, err
}

// judge compares what is found with what is remembered, and returns why a new
// life of the numbering must begin; "" when everything that was acknowledged is
// there, or when a new life has begun already.
func judge(m memory, now sighting) string {
	behind := m.System != "" && (now.wal < m.WAL || (now.seq < m.Seq && m.Seq > 0))
	// A promoted replica keeps the life when no commit was acknowledged before
	// the replica had it, and nothing that is remembered says otherwise.
	kept := now.recordedSync && !behind && now.recorded.timeline < now.timeline
	switch {
	case now.recorded.system != now.system:
		return "the data was restored from a dump"
	case now.recorded.timeline != now.timeline && !kept:
		return "a replica was promoted or a backup recovered"
	case m.System == "" || now.epoch > m.Epoch:
		return "" // nothing to compare with, or another node has compared already
	case now.epoch < m.Epoch:
		return "the database is an earlier one"
	case now.system != m.System:
		return "the database is another one"
	case now.timeline < m.Timeline:
		return "a backup was put back"
	case now.seq < m.Seq:
		return "batches that this node has acknowledged are missing"
	case now.wal < m.WAL:
		return "the server's log is behind what this node has seen: a backup was put back"
	}
	return ""
}

// lifeKeeper remembers, and writes what it remembers to a small local file.
type lifeKeeper struct {
	file   string
	log    *zap.Logger
	turn   chan struct{} // holds a token while a new life is made
	saving sync.Mutex    // one write of the file at a time

	mu     sync.Mutex // guards what follows
	forced bool
	seen   memory
	life   lifeID
}

func newLifeKeeper(file string, forced bool, log *zap.Logger) *lifeKeeper {
	k := &lifeKeeper{file: file, forced: forced, log: log, turn: make(chan struct{}, 1)}
	if file == "" {
		return k
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return k
	}
	if err == nil {
		err = json.Unmarshal(text, &k.seen)
	}
	if err != nil {
		k.log.Warn("the life file cannot be read; a backup that was put back would go unnoticed this time", zap.Error(err))
		k.seen = memory{}
	}
	return k
}

func (k *lifeKeeper) save() {
	if k.file == "" {
		return
	}
	k.saving.Lock()
	defer k.saving.Unlock()
	k.mu.Lock()
	text, err := json.Marshal(k.seen)
	k.mu.Unlock()
	if err == nil {
		err = replaceFile(k.file, text)
	}
	if err != nil {
		k.log.Warn("the life file cannot be written", zap.Error(err))
	}
}

func replaceFile(name string, text []byte) error {
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// acknowledge notes that this node has told callers of batch seq of a writer.
func (k *lifeKeeper) acknowledge(in lifeID, writer uuid.UUID, seq int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if in == k.life {
		k.seen.Writer, k.seen.Seq, k.seen.Acked = writer, seq, time.Now()
	}
}

// now returns what is remembered, and whether a new life was asked for.
func (k *lifeKeeper) now() (memory, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.seen
	if time.Since(m.Acked) > journalTrusted {
		m.Seq = 0
	}
	return m, k.forced
}

func (k *lifeKeeper) current() lifeID {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.life
}

// note remembers a database that was found to be as it should. The log's
// position never goes back while the life goes on: sightings may come in late.
func (k *lifeKeeper) note(now sighting) lifeID {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.epoch < k.seen.Epoch {
		return lifeID{now.table, now.epoch} // a sighting from before the life that has begun meanwhile
	}
	if now.epoch > k.seen.Epoch || now.system != k.seen.System {
		k.seen = memory{Epoch: now.epoch, System: now.system}
	}
	k.seen.Timeline, k.seen.WAL = now.timeline, max(k.seen.WAL, now.wal)
	k.life = lifeID{now.table, now.epoch}
	return k.life
}

// checkLife runs on every new connection before anything else, and once a
// second: it compares the database with what it says of itself and with what
// this node remembers, and starts a new life of the numbering when messages that
// were acknowledged may be missing. A database without our tables gets them.
func (s *Store) checkLife(ctx context.Context, conn *pgx.Conn) (lifeID, error) {
	remembered, forced := s.life.now()
	now, err := sight(ctx, conn, remembered.Writer)
	if isMissing(err) {
		if err := migrate(ctx, s.config.Copy(), s.log); err != nil {
			return lifeID{}, err
		}
		now, err = sight(ctx, conn, remembered.Writer)
	}
	switch {
	case err != nil:
		return lifeID{}, fmt.Errorf("postgres: which database is this: %w", err)
	case now.recovering:
		return lifeID{}, errors.New("postgres: the server is a replica that has not been promoted; it takes no writes")
	}
	if !forced && judge(remembered, now) == "" {
		if now.recorded.timeline != now.timeline || now.recordedSync != now.sync {
			if err := recordServer(ctx, conn, now); err != nil {
				return lifeID{}, fmt.Errorf("postgres: record the server: %w", err)
			}
		}
		if remembered.Epoch > 0 && now.epoch > remembered.Epoch && s.life.current().epoch < now.epoch {
			s.log.Warn("a new life of the numbering has begun elsewhere, or streams were removed; readers will be reset", zap.Stringer("epoch", now.epoch))
		}
		return s.life.note(now), nil
	}
	return s.newLife(ctx, conn)
}

// isMissing says that err is the server's word that our tables are not there.
func isMissing(err error) bool {
	refused := refusal(err)
	return errors.Is(err, pgx.ErrNoRows) || refused != nil && (refused.Code == "42P01" || refused.Code == "3F000")
}

// recordServer notes a server that goes on with the life.
func recordServer(ctx context.Context, conn *pgx.Conn, now sighting) error {
	_, err := conn.Exec(ctx, `UPDATE chronocast.life SET timeline = $1, synchronous = $2 WHERE epoch = $3 AND timeline = $4`,
		now.timeline, now.sync, int64(now.epoch), now.recorded.timeline)
	return err
}

// newLife gives the database a new, strictly greater epoch. Several nodes, and
// several connections of one, may notice the same change: they take turns, and
// only the first raises it.
func (s *Store) newLife(ctx context.Context, conn *pgx.Conn) (life lifeID, err error) {
	k := s.life
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return lifeID{}, ctx.Err()
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return lifeID{}, fmt.Errorf("postgres: start a new life of the numbering: %w", err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit it does nothing
	if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', '2000', true)`); err != nil {
		return lifeID{}, fmt.Errorf("postgres: start a new life of the numbering: %w", err)
	}
	if _, err := tx.Exec(ctx, `SELECT FROM chronocast.life FOR UPDATE`); err != nil {
		return lifeID{}, fmt.Errorf("postgres: start a new life of the numbering: %w", err)
	}
	remembered, forced := k.now()
	now, err := sight(ctx, tx, remembered.Writer)
	if err != nil {
		return lifeID{}, fmt.Errorf("postgres: start a new life of the numbering: %w", err)
	}
	why := judge(remembered, now)
	if forced {
		why = "asked for"
	}
	if why == "" { // somebody was here first
		return k.note(now), tx.Rollback(ctx)
	}
	epoch := max(now.epoch+1, remembered.Epoch+1, protocol.Epoch(time.Now().UnixMicro()))
	var raised int64
	err = tx.QueryRow(ctx, `UPDATE chronocast.life SET system_id = $1, timeline = $2, synchronous = $3,
		epoch = greatest($4::bigint, (SELECT coalesce(max(epoch), 0) + 1 FROM chronocast.channels)) RETURNING epoch`,
		now.system, now.timeline, now.sync, int64(epoch)).Scan(&raised)
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		return lifeID{}, fmt.Errorf("postgres: start a new life of the numbering: %w", err)
	}
	now.epoch = protocol.Epoch(raised)
	k.mu.Lock()
	k.forced = false
	k.mu.Unlock()
	life = k.note(now)
	k.save()
	s.log.Warn("a new life of the numbering begins; readers will be reset", zap.String("why", why), zap.Stringer("epoch", now.epoch))
	return life, nil
}

// Sight looks whether the database is still the same, and remembers how far it
// has come. The node calls it about once a second: the fresher the memory, the
// surer a backup that was put back is recognized.
func (s *Store) Sight(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return s.unavailable("sight", err)
	}
	defer conn.Release()
	if _, err := s.checkLife(ctx, conn.Conn()); err != nil {
		return s.unavailable("sight", err)
	}
	s.life.save()
	return nil
}
