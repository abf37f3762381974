package sqlite

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/chronocast/chronocast/internal/store/storetest"
)

func TestSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Database {
		path := filepath.Join(t.TempDir(), "a database?.db")
		return storetest.Database{
			Open: func(t *testing.T, o storetest.Options) storetest.Store {
				t.Helper()
				return mustOpen(t, path, Options{Now: o.Now, KeyWindow: o.KeyWindow})
			},
			SetLast: func(t *testing.T, stream string, last uint64) {
				t.Helper()
				c := outsider(t, path)
				if err := c.exec(context.Background(), "UPDATE channels SET last_offset = ? WHERE name = ?", int64(last), stream); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func mustOpen(t *testing.T, path string, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// outsider is a connection of its own, as another program would have one.
func outsider(t *testing.T, path string) *conn {
	t.Helper()
	c, err := openConn(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.close() })
	return c
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
