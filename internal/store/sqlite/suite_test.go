package sqlite

import (
	"context"
	"path/filepath"
	"testing"

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
