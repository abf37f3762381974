package postgres

import "context"

// Notify rings the doorbell with text.
func (s *Store) Notify(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	_, err := s.pool.Exec(ctx, `SELECT pg_notify($1, $2)`, doorbell, text)
	return s.unavailable("notify", err)
}
