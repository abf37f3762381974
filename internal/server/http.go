package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// ServeHTTP answers every request. A refusal is a JSON object with a code and
// a sentence, whatever was wrong.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := s.opts.Authorizer.Admit(r); err != nil && !s.code(r) {
		s.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	s.crossOrigin(h, r)
	// The escaped path, so that a slash inside a stream's name is not taken
	// for one between segments.
	path := r.URL.EscapedPath()
	switch path {
	case "/cable":
		if s.allow(w, r, http.MethodGet) {
			s.serveCable(w, r)
		}
	case "/broadcast", "/_broadcast":
		if s.allow(w, r, http.MethodPost) {
			s.serveBroadcast(w, r)
		}
	case "/disconnect":
		if s.allow(w, r, http.MethodPost) {
			s.serveDisconnect(w, r)
		}
	case "/healthz":
		if s.allow(w, r, http.MethodGet, http.MethodHead) {
			writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
		}
	case "/readyz":
		if s.allow(w, r, http.MethodGet, http.MethodHead) {
			s.serveReady(w, r)
		}
	case "/metrics":
		if s.allow(w, r, http.MethodGet, http.MethodHead) {
			if _, ok := s.permit(w, r, s.opts.Authorizer.Metrics); ok {
				s.serveMetrics(w, r)
			}
		}
	default:
		if rest, ok := strings.CutPrefix(path, "/signed/"); ok {
			s.serveSigned(w, r, rest)
			return
		}
		if rest, ok := strings.CutPrefix(path, "/streams/"); ok {
			s.serveStream(w, r, rest)
			return
		}
		s.servePage(w, r, path)
	}
}

// serveStream serves what lies below /streams/.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, rest string) {
	escaped, under, deeper := strings.Cut(rest, "/")
	var serve func(http.ResponseWriter, *http.Request, string)
	switch {
	case !deeper:
		if !s.allow(w, r, http.MethodGet, http.MethodHead) {
			return
		}
		serve = s.serveHead
	case under == "messages":
		if !s.allow(w, r, http.MethodGet, http.MethodHead, http.MethodPost) {
			return
		}
		serve = s.serveHistory
		if r.Method == http.MethodPost {
			serve = s.servePublish
		}
	default:
		s.fail(w, r, errNoPage)
		return
	}
	name, err := url.PathUnescape(escaped)
	if err == nil {
		err = protocol.CheckStream(name)
	}
	if err != nil {
		s.fail(w, r, protocol.ErrStreamName)
		return
	}
	if _, ok := s.permit(w, r, func(who *auth.Identity) error {
		if r.Method == http.MethodPost {
			return s.opts.Authorizer.Publish(who, name)
		}
		return s.opts.Authorizer.Read(r.Context(), who, name)
	}); ok {
		serve(w, r, name)
	}
}

var errNoPage = refuse(http.StatusNotFound, "not_found", "there is nothing at this address")

func (s *Server) servePage(w http.ResponseWriter, r *http.Request, path string) {
	page, ok := s.opts.Pages[path]
	for prefix := path; !ok && len(prefix) > 1; {
		i := strings.LastIndexByte(prefix[:len(prefix)-1], '/')
		if i < 1 {
			break
		}
		prefix = prefix[:i+1]
		page, ok = s.opts.Pages[prefix]
	}
	if !ok {
		s.fail(w, r, errNoPage)
		return
	}
	page.ServeHTTP(w, r)
}

// allow says whether the method is one of these. It answers the request when
// it is not, and when it only asks which they are.
func (s *Server) allow(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	allowed := strings.Join(append(methods, http.MethodOptions), ", ")
	w.Header().Set("Allow", allowed)
	if r.Method != http.MethodOptions {
		s.fail(w, r, refuse(http.StatusMethodNotAllowed, "method_not_allowed", "the methods here are "+allowed))
		return false
	}
	if r.Header.Get("Origin") != "" {
		s.preflight(w.Header(), methods)
	}
	w.WriteHeader(http.StatusNoContent)
	return false
}

// servePublish commits the body as one broadcast.
func (s *Server) servePublish(w http.ResponseWriter, r *http.Request, stream string) {
	key, err := idempotencyKey(r, sequencer.MaxKeyBytes)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	text, err := textBody(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	data, free, err := s.readBody(w, r, s.opts.MaxPayloadBytes)
	defer free()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if text {
		data, err = protocol.QuotePayload(data)
	} else {
		err = protocol.CheckPayload(data)
	}
	if err == nil {
		err = s.checkSize(data)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	placed, err := s.append(r, sequencer.Request{{Stream: stream, Data: data, Key: key}})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	status := http.StatusCreated
	if placed[0].Repeat {
		status = http.StatusOK
	}
	writeJSON(w, status, appendPlaced(nil, stream, placed[0]))
}

// serveBroadcast commits what AnyCable's publishers send, all of it or nothing.
func (s *Server) serveBroadcast(w http.ResponseWriter, r *http.Request) {
	who, ok := s.permit(w, r, s.opts.Authorizer.Publisher)
	if !ok {
		return
	}
	// Each item's key is the request's with its place behind it.
	key, err := idempotencyKey(r, sequencer.MaxKeyBytes-len("#")-len(strconv.Itoa(s.opts.MaxBroadcastItems)))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if text, err := textBody(r); err != nil || text {
		s.fail(w, r, errContentType)
		return
	}
	body, free, err := s.readBody(w, r, s.opts.MaxBroadcastBytes)
	defer free()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	items, err := protocol.DecodeBroadcasts(body, s.opts.MaxBroadcastItems)
	if errors.Is(err, protocol.ErrRemoteCommand) {
		s.serveRemoteCommand(w, r, who, body)
		return
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	request := make(sequencer.Request, len(items))
	for i, item := range items {
		err := s.opts.Authorizer.Publish(who, item.Stream)
		if err == nil {
			err = s.checkSize(item.Data)
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		request[i] = sequencer.Broadcast{Stream: item.Stream, Data: item.Data}
		if key != "" {
			request[i].Key = key + "#" + strconv.Itoa(i)
		}
	}
	placed, err := s.append(r, request)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	status := http.StatusOK
	array := bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("["))
	var b []byte
	for i, p := range placed {
		if !p.Repeat {
			status = http.StatusCreated
		}
		if array && i == 0 {
			b = append(b, '[')
		} else if array {
			b = append(b, ',')
		}
		b = appendPlaced(b, request[i].Stream, p)
	}
	if array {
		b = append(b, ']')
	}
	writeJSON(w, status, b)
}

// append commits a request within the publish deadline.
func (s *Server) append(r *http.Request, request sequencer.Request) ([]sequencer.Placed, error) {
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.PublishTimeout)
	defer cancel()
	placed, err := s.opts.Appender.Append(ctx, request)
	s.noteOutcome(err)
	if err != nil {
		return nil, err
	}
	for _, p := range placed {
		if p.Repeat {
			s.metrics.repeats.Add(1)
		} else {
			s.metrics.broadcasts.Add(1)
		}
	}
	return placed, nil
}

func (s *Server) checkSize(data []byte) error {
	if len(data) > s.opts.MaxPayloadBytes {
		return &http.MaxBytesError{Limit: int64(s.opts.MaxPayloadBytes)}
	}
	return nil
}

// serveHead tells where a stream stands.
func (s *Server) serveHead(w http.ResponseWriter, r *http.Request, stream string) {
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.CommandTimeout)
	defer cancel()
	span, err := s.opts.Reader.Head(ctx, stream)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	b := appendMember(nil, '{', "stream", stream)
	writeJSON(w, http.StatusOK, append(appendSpan(b, span), '}'))
}

// defaultPage is how many messages a page holds when the request does not say.
const defaultPage = 1000

// serveHistory gives one page of what follows a position. Without one the page
// begins with the first message that is kept.
func (s *Server) serveHistory(w http.ResponseWriter, r *http.Request, stream string) {
	after, fromFirst, limit, err := s.pageQuery(r.URL.RawQuery)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.CommandTimeout)
	defer cancel()
	for {
		if fromFirst {
			span, err := s.opts.Reader.Head(ctx, stream)
			if err != nil {
				s.fail(w, r, err)
				return
			}
			after = protocol.Position{Epoch: span.Epoch, Offset: span.First - 1}
		}
		page, reason, err := s.opts.Reader.Read(ctx, stream, after, limit, s.opts.MaxPageBytes)
		switch {
		case err != nil:
			s.fail(w, r, err)
			return
		case reason != "" && fromFirst && ctx.Err() == nil:
			continue // trimmed between the two reads
		case reason != "":
			s.gone(w, stream, reason, page.Span)
			return
		}
		size := 128 + len(stream)
		for i := range page.Messages {
			size += len(page.Messages[i].Data) + 64
		}
		b := appendMember(make([]byte, 0, size), '{', "stream", stream)
		b = appendSpan(b, page.Span)
		b = append(b, `,"messages":[`...)
		end := after.Offset
		for i, m := range page.Messages {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"offset":`...)
			b = strconv.AppendUint(b, m.Offset, 10)
			b = append(b, `,"data":`...)
			b = append(b, m.Data...)
			b = append(b, `,"at":`...)
			b = strconv.AppendInt(b, m.At, 10)
			b = append(b, '}')
			end = m.Offset
		}
		b = append(b, `],"more":`...)
		b = strconv.AppendBool(b, end < page.Last)
		writeJSON(w, http.StatusOK, append(b, '}'))
		return
	}
}

// pageQuery reads after and limit. fromFirst is true when there is no after.
func (s *Server) pageQuery(raw string) (after protocol.Position, fromFirst bool, limit int, err error) {
	malformed := func(message string) (protocol.Position, bool, int, error) {
		return protocol.Position{}, false, 0, refuse(http.StatusBadRequest, "malformed", message)
	}
	query, err := url.ParseQuery(raw)
	if err != nil {
		return malformed("the query cannot be read")
	}
	if len(query["after"]) > 1 || len(query["limit"]) > 1 {
		return malformed("after and limit may be given once each")
	}
	limit = min(defaultPage, s.opts.MaxPage)
	if query.Has("limit") {
		text := query.Get("limit")
		limit, err = strconv.Atoi(text)
		if err != nil || limit < 1 || limit > s.opts.MaxPage || text[0] == '+' {
			return malformed("limit must be an integer from 1 to " + strconv.Itoa(s.opts.MaxPage))
		}
	}
	if !query.Has("after") {
		return after, true, limit, nil
	}
	after, err = protocol.ParsePosition(query.Get("after"))
	if err != nil {
		return malformed("after must be EPOCH:OFFSET or OFFSET, an offset from 0 to " + strconv.FormatUint(protocol.MaxOffset, 10))
	}
	return after, false, limit, nil
}

// idempotencyKey reads the header of that name; "" when there is none.
func idempotencyKey(r *http.Request, limit int) (string, error) {
	values := r.Header.Values("Idempotency-Key")
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", refuse(http.StatusUnprocessableEntity, "bad_key", "one Idempotency-Key, please")
	case strings.TrimSpace(values[0]) == "":
		// As a key it would make all messages of careless publishers the same.
		return "", refuse(http.StatusUnprocessableEntity, "bad_key", "the Idempotency-Key is empty: leave the header out, or send a key")
	case len(values[0]) > limit:
		return "", refuse(http.StatusUnprocessableEntity, "bad_key", "an Idempotency-Key has at most "+strconv.Itoa(limit)+" bytes here")
	}
	return values[0], nil
}

var errContentType = refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "send Content-Type: application/json, or text/plain for text")

// textBody says whether the body is text that is to become a JSON string; the
// alternative is JSON.
func textBody(r *http.Request) (bool, error) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return false, refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "send the body without a Content-Encoding")
	}
	header := r.Header.Get("Content-Type")
	if header == "" {
		return false, nil // it has to be JSON then
	}
	media, params, err := mime.ParseMediaType(header)
	if err != nil {
		return false, errContentType
	}
	switch charset := strings.ToLower(params["charset"]); charset {
	case "", "utf-8", "utf8", "us-ascii":
	default:
		return false, refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "send the body in UTF-8")
	}
	switch {
	case media == "application/json", strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json"):
		return false, nil
	case strings.HasPrefix(media, "text/"):
		return true, nil
	}
	return false, errContentType
}

func appendPlaced(b []byte, stream string, p sequencer.Placed) []byte {
	b = appendMember(b, '{', "stream", stream)
	b = append(b, `,"epoch":"`...)
	b = strconv.AppendInt(b, int64(p.Epoch), 10)
	b = append(b, `","offset":`...)
	b = strconv.AppendUint(b, p.Offset, 10)
	return append(b, '}')
}

// appendMember appends before, then "name":"value".
func appendMember(b []byte, before byte, name, value string) []byte {
	b = append(b, before, '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	quoted, err := protocol.QuotePayload([]byte(value))
	if err != nil { // not UTF-8
		quoted, _ = json.Marshal(value)
	}
	return append(b, quoted...)
}

// appendSpan appends where a stream stands, after another member.
func appendSpan(b []byte, span protocol.Span) []byte {
	b = append(b, `,"epoch":"`...)
	b = strconv.AppendInt(b, int64(span.Epoch), 10)
	b = append(b, `","first":`...)
	b = strconv.AppendUint(b, span.First, 10)
	b = append(b, `,"last":`...)
	return strconv.AppendUint(b, span.Last, 10)
}

// writeJSON sends a whole answer.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	body = append(body, '\n') // for people at a terminal
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
