package load

import "io"

// WriteHTML writes a report of one page.
func (r *Result) WriteHTML(w io.Writer) error { return r.WriteJSON(w) }
