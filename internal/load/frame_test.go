package load

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestParseFrame_EverySizeAndEveryCut(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 70_000} {
		text := bytes.Repeat([]byte{'a'}, n)
		whole := append(appendHeader(nil, n), text...)
		for _, cut := range []int{0, 1, 2, 3, 9, len(whole) - 1} {
			if cut < 0 || cut >= len(whole) {
				continue
			}
			if _, got, need, err := parseFrame(whole[:cut]); got != 0 || err != nil || need <= cut || need > len(whole) {
				t.Errorf("%d of %d bytes: length %d, need %d, %v", cut, len(whole), got, need, err)
			}
		}
		f, got, _, err := parseFrame(append(whole, "more"...))
		if err != nil || got != len(whole) || !f.fin || f.op != opText || !bytes.Equal(f.body, text) {
			t.Errorf("frame of %d bytes: %d, %v", n, got, err)
		}
	}
}

func TestParseFrame_Refuses(t *testing.T) {
	for name, c := range map[string]struct {
		frame string
		want  error
	}{
		"reserved bit":        {"\xc1\x00", errFrame},
		"masked":              {"\x81\x80\x00\x00\x00\x00", errMasked},
		"unknown opcode":      {"\x83\x00", errFrame},
		"control of 126":      {"\x89\x7e\x00\x7e", errFrame},
		"fragmented control":  {"\x09\x00", errFrame},
		"larger than allowed": {"\x81\x7f\x7f\xff\xff\xff\xff\xff\xff\xff", errTooLarge},
	} {
		if _, _, _, err := parseFrame([]byte(c.frame)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add([]byte("\x81\x05hello"))
	f.Add([]byte("\x81\x7e\x00\x80"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, n, need, err := parseFrame(b)
		if n > len(b) || len(fr.body) > n || err == nil && n == 0 && need <= len(b) {
			t.Fatalf("%x: %d, %d", b, n, need)
		}
	})
}

// TestAppendFrame_IsReadByAnotherImplementation has gorilla read what we write.
func TestAppendFrame_IsReadByAnotherImplementation(t *testing.T) {
	s := newFake(t, fakeOptions{echo: true})
	for _, n := range []int{0, 1, 3, 125, 126, 65535, 65536, 200_000} {
		text := strings.Repeat("ä", n/2) + strings.Repeat("b", n%2)
		if got := s.roundTrip(appendFrame(nil, opText, []byte(text))); got != text {
			t.Errorf("%d bytes came back as %d", len(text), len(got))
		}
	}
}

func TestHandshake_SaysWhatIsWrong(t *testing.T) {
	h := newHandshake("/cable", "localhost", "", "actioncable-v1-json", nil)
	_, key := h.request(nil)
	for answer, want := range map[string]string{
		"SSH-2.0-OpenSSH\r\n\r\n":                                               "did not answer in HTTP",
		"HTTP/1.1 503 No\r\n\r\n{\"error\":\"stopping\"}":                       "status 503: {\"error\":\"stopping\"}",
		"HTTP/1.1 101 Ok\r\nSec-WebSocket-Accept: nonsense\r\n\r\n":             "wrong Sec-WebSocket-Accept",
		"HTTP/1.1 xyz\r\n\r\n":                                                  "did not answer in HTTP",
		"HTTP/1.1 101 Ok\r\n" + strings.Repeat("a: b\r\n", 5000) + "unfinished": "does not end",
	} {
		if _, err := h.check([]byte(answer), key); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v", answer, err)
		}
	}
	if n, err := h.check([]byte("HTTP/1.1 101 Switching"), key); n != 0 || err != nil {
		t.Errorf("half an answer: %d, %v", n, err)
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add([]byte("HTTP/1.1 101 Ok\r\nSec-WebSocket-Accept: x\r\n\r\n"))
	h := newHandshake("/", "h", "", "", nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := h.check(b, [24]byte{}); n > len(b) || n > 0 && err != nil {
			t.Fatalf("%q: %d, %v", b, n, err)
		}
	})
}

func TestReadAnswer(t *testing.T) {
	for answer, want := range map[string]struct {
		keep    bool
		refused string
		err     string
	}{
		"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}":                        {keep: true},
		"HTTP/1.1 204 No Content\r\n\r\n":                                            {keep: true},
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": {keep: true},
		"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n":          {},
		"HTTP/1.0 200 OK\r\n\r\nwhatever":                                            {},
		"HTTP/1.1 401 No\r\nContent-Length: 5\r\n\r\nwrong":                          {keep: true, refused: "401: wrong"},
		"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n":                              {err: "Content-Length"},
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab":                             {err: "EOF"},
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n":                {err: "chunked"},
		"nonsense\r\n": {err: "HTTP"},
		"":             {err: "without an answer"},
	} {
		keep, refused, err := readAnswer(bufio.NewReader(strings.NewReader(answer)))
		has := func(err error, text string) bool {
			return err == nil && text == "" || err != nil && text != "" && strings.Contains(err.Error(), text)
		}
		if keep != want.keep || !has(refused, want.refused) || !has(err, want.err) {
			t.Errorf("%.50q: %v, %v, %v", answer, keep, refused, err)
		}
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		keep, refused, err := readAnswer(bufio.NewReader(bytes.NewReader(b)))
		if err != nil && (keep || refused != nil) {
			t.Fatal("an answer that cannot be read and is one")
		}
	})
}
