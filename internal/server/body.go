package server

import (
	"errors"
	"io"
	"net/http"
	"slices"
)

// firstChunk is what a body is given before it is known to be longer.
const firstChunk = 512

var errBodies = &problem{status: http.StatusServiceUnavailable, code: "overloaded", message: "too much is being received; nothing was stored", retry: true}

// readBody reads the whole body. Its memory grows as bytes arrive, up to exactly
// its size when that was announced, and is charged to the budget of all bodies
// until free is called; free is never nil.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, limit int) (data []byte, free func(), err error) {
	charged := 0
	free = func() { s.bodies.Add(int64(-charged)) }
	refused := func(err error) ([]byte, func(), error) {
		w.Header().Set("Connection", "close") // rather than read on to find the next request
		return nil, free, err
	}
	tooLarge := &http.MaxBytesError{Limit: int64(limit)}
	if r.ContentLength > int64(limit) {
		return refused(tooLarge)
	}
	size := limit + 1 // one more, to see that it is too large
	if r.ContentLength >= 0 {
		size = int(r.ContentLength)
	}
	releaseConn(r)
	for len(data) < size {
		if len(data) == cap(data) {
			grown := min(max(2*cap(data), firstChunk), size)
			if s.bodies.Add(int64(grown-charged)) > int64(s.opts.BodyBudget) {
				s.bodies.Add(int64(charged - grown))
				return refused(errBodies)
			}
			charged = grown
			data = append(make([]byte, 0, grown), data...)
		}
		n, err := r.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case errors.Is(err, io.EOF) && (r.ContentLength < 0 || len(data) == size):
			size = len(data)
		case err != nil:
			return nil, free, refuse(http.StatusBadRequest, "malformed", "the body ended early")
		}
	}
	if len(data) > limit {
		return refused(tooLarge)
	}
	if cap(data) > len(data) {
		data = slices.Clone(data) // it may stay in memory for a while
	}
	return slices.Clip(data), free, nil
}
