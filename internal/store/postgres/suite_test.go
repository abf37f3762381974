package postgres

import (
	"testing"

	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/internal/store/storetest"
)

func TestSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Database {
		url := pgtest.Database(t)
		return storetest.Database{
			Shared: true,
			Open: func(t *testing.T, o storetest.Options) storetest.Store {
				t.Helper()
				return mustOpen(t, url, Options{Now: o.Now, KeyWindow: o.KeyWindow})
			},
			SetLast: func(t *testing.T, stream string, last uint64) {
				t.Helper()
				_, err := outsider(t, url).Exec(t.Context(), `UPDATE chronocast.channels SET last_offset = $1
					WHERE id = (SELECT id FROM chronocast.streams WHERE name = $2)`, int64(last), stream)
				if err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}
