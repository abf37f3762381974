// Package migrations holds the schema of each database as numbered SQL files.
// They only go up, and a file that was once released never changes: the store
// records the checksum of what it applied and refuses to go on with another.
package migrations

import "embed"

// SQLite holds sqlite/NNNN_name.sql.
//
//go:embed sqlite/*.sql
var SQLite embed.FS

// Postgres holds postgres/NNNN_name.sql.
//
//go:embed postgres/*.sql
var Postgres embed.FS
