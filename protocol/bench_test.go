package protocol

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// benchMessages returns n messages of about size bytes: a token when small,
// HTML in a JSON string otherwise.
func benchMessages(n, size int) []Message {
	data := `{"token":" the"}`
	if size > len(data) {
		const row = `<li class=\"message\" id=\"m42\">Ordered &amp; recoverable</li>`
		data = `"` + strings.Repeat(row, size/len(row)+1)
		data = strings.TrimRight(data[:size-1], `\`) + `"`
	}
	msgs := make([]Message, n)
	for i := range msgs {
		msgs[i] = Message{Offset: uint64(1000 + i), Data: []byte(data)}
	}
	return msgs
}

var benchSizes = []struct {
	name string
	size int
}{{"15B", 15}, {"300B", 300}, {"3KB", 3 << 10}, {"80KB", 80 << 10}}

// BenchmarkFrame encodes one message into one frame: by the codec, and by
// encoding/json as one would write it first.
func BenchmarkFrame(b *testing.B) {
	a := NewAddress(testIdentifier, testStream)
	codec := Codecs()[0]
	for _, s := range benchSizes {
		msgs := benchMessages(1, s.size)
		b.Run(s.name+"/codec", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(msgs[0].Data)))
			dst := make([][]byte, 0, 1)
			for b.Loop() {
				dst = codec.Frames(dst[:0], a, testEpoch, msgs, false)
			}
		})
		b.Run(s.name+"/naive", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(msgs[0].Data)))
			for b.Loop() {
				naiveFrame(b, testIdentifier, testStream, testEpoch, &msgs[0])
			}
		})
	}
}

// BenchmarkBurst encodes 16 messages into one frame.
func BenchmarkBurst(b *testing.B) {
	a := NewAddress(testIdentifier, testStream)
	codec := Codecs()[0]
	for _, s := range benchSizes[:3] {
		msgs := benchMessages(16, s.size)
		b.Run(s.name, func(b *testing.B) {
			b.ReportAllocs()
			dst := make([][]byte, 0, 1)
			for b.Loop() {
				dst = codec.Frames(dst[:0], a, testEpoch, msgs, false)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(msgs)), "ns/message")
		})
	}
}

// BenchmarkDecode reads a subscribe with history, and a broadcast.
func BenchmarkDecode(b *testing.B) {
	codec := Codecs()[1]
	frame := []byte(`{"command":"subscribe","identifier":"{\"channel\":\"$pubsub\",\"stream_name\":\"chat/42\"}","history":{"since":1796061600,"streams":{"chat/42":{"epoch":"1796061414123456","offset":41}}}}`)
	b.Run("subscribe/codec", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := codec.Decode(frame); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("subscribe/naive", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v struct {
				Command    string `json:"command"`
				Identifier string `json:"identifier"`
				History    *struct {
					Since   float64 `json:"since"`
					Streams map[string]struct {
						Epoch  string `json:"epoch"`
						Offset uint64 `json:"offset"`
					} `json:"streams"`
				} `json:"history"`
			}
			if err := json.Unmarshal(frame, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, s := range benchSizes {
		body := fmt.Appendf(nil, `{"stream":"chat/42","data":%s}`, appendText(nil, benchMessages(1, s.size)[0].Data))
		b.Run("broadcast/"+s.name+"/codec", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := DecodeBroadcasts(body, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("broadcast/"+s.name+"/naive", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				var v struct{ Stream, Data string }
				if err := json.Unmarshal(body, &v); err != nil || !json.Valid([]byte(v.Data)) {
					b.Fatal(err)
				}
			}
		})
	}
}

// naiveFrame is the frame as encoding/json makes it. It is also wrong: Marshal
// compacts a RawMessage and escapes the HTML in it.
func naiveFrame(tb testing.TB, identifier, stream string, epoch Epoch, m *Message) []byte {
	frame, err := json.Marshal(struct {
		Identifier string          `json:"identifier"`
		Message    json.RawMessage `json:"message"`
		Stream     string          `json:"stream_id"`
		Epoch      string          `json:"epoch"`
		Offset     uint64          `json:"offset"`
	}{identifier, m.Data, stream, epoch.String(), m.Offset})
	if err != nil {
		tb.Fatal(err)
	}
	return frame
}

// BenchmarkCheckPayload is what a payload posted as it is costs on its way in.
func BenchmarkCheckPayload(b *testing.B) {
	for _, s := range benchSizes {
		data := benchMessages(1, s.size)[0].Data
		b.Run(s.name+"/check", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if CheckPayload(data) != nil {
					b.Fatal("refused")
				}
			}
		})
		b.Run(s.name+"/naive", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if !utf8.Valid(data) || !json.Valid(data) {
					b.Fatal("refused")
				}
			}
		})
	}
}
