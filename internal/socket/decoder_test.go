package socket

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"unicode/utf8"
)

// decoded is everything a decoder makes of a client.
type decoded struct {
	texts []string
	pong  string
	code  int // of the answer
}

func (d decoded) String() string { return fmt.Sprintf("%q pong %q code %d", d.texts, d.pong, d.code) }

// decode feeds a decoder pieces of a client's bytes as a connection does:
// what is left of one comes again before the next.
func decode(t testing.TB, limit int, pieces ...[]byte) decoded {
	got := decoded{pong: "-"}
	var dec Decoder
	var rest []byte
	for _, p := range pieces {
		rest = append(rest, p...)
		for {
			ev, n, err := dec.Next(rest, limit)
			if n < 0 || n > len(rest) {
				t.Fatalf("%d of %d bytes taken", n, len(rest))
			}
			rest = rest[n:]
			if err != nil {
				var fault *Fault
				if !errors.As(err, &fault) || ev.Kind != None {
					t.Fatalf("%v with %+v", err, ev)
				}
				got.code = fault.Code
				return got
			}
			switch ev.Kind {
			case Text:
				got.texts = append(got.texts, string(ev.Data))
			case Ping:
				got.pong = string(ev.Data)
			case Close:
				if got.code = ev.Code; got.code == closeNoStatus {
					got.code = CloseNormal
				}
				return got
			case None:
			}
			if ev.Kind == None {
				break
			}
		}
		if most := limit + 14; len(rest) > max(most, maxControl+6) {
			t.Fatalf("%d bytes are kept for a message of %d", len(rest), limit)
		}
	}
	return got
}

// TestDecoder_RFC6455 plays every case whole, byte by byte, and cut in two
// everywhere.
func TestDecoder_RFC6455(t *testing.T) {
	cases := rawCases()
	if len(cases) < 250 {
		t.Errorf("only %d cases", len(cases))
	}
	for _, c := range cases {
		want := decoded{c.texts, c.pong, c.code}.String()
		check := func(how string, pieces ...[]byte) {
			got := decode(t, testLimit, pieces...)
			if s := got.String(); s != want {
				t.Errorf("%s, %s:\n got %.200s\nwant %.200s", c.name, how, s, want)
			}
		}
		check("whole", bytes.Clone(c.bytes))
		single := make([][]byte, 0, len(c.bytes))
		for i := range c.bytes {
			single = append(single, c.bytes[i:i+1])
		}
		if len(single) > 4000 {
			continue
		}
		check("byte by byte", single...)
		for i := range min(len(c.bytes), 400) {
			check(fmt.Sprint("cut at ", i), c.bytes[:i], c.bytes[i:])
		}
	}
}

// TestDecoder_RefusesBeforeThePayload: what will be refused is not waited for.
func TestDecoder_RefusesBeforeThePayload(t *testing.T) {
	for name, head := range map[string][]byte{
		"reserved bit": {finBit | 0x40 | opText}, "opcode": {finBit | 0x3}, "control in fragments": {opPing},
		"no mask": {finBit | opText, 5}, "control too long": {finBit | opPing, maskBit | 126},
		"binary": {finBit | opBinary, maskBit}, "too long": headOnly(finBit|opText, testLimit+1<<16)[:10],
	} {
		if got := decode(t, testLimit, head); got.code == 0 {
			t.Errorf("%s: more is waited for", name)
		}
	}
}

// TestDecoder_KeepsNothing of messages in one piece, and nothing of those in
// fragments after their end.
func TestDecoder_KeepsNothing(t *testing.T) {
	var dec Decoder
	in := join(frame(finBit|opText, "whole"), frame(opText, "frag"), frame(finBit|opContinuation, "ment"))
	for range 2 {
		_, n, err := dec.Next(in, testLimit)
		if err != nil {
			t.Fatal(err)
		}
		in = in[n:]
	}
	if dec.msg != nil || !dec.idle() {
		t.Errorf("%+v", dec)
	}
	whole := frame(finBit|opText, "whole")
	in = make([]byte, len(whole))
	if n := testing.AllocsPerRun(100, func() {
		var dec Decoder
		copy(in, whole)
		if _, _, err := dec.Next(in, testLimit); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a message in one piece", n)
	}
}

// twin reads the same frames the slow and obvious way: everything at once, one
// byte at a time, in the words of the RFC.
func twin(b []byte, limit int) decoded {
	got := decoded{pong: "-"}
	var msg []byte
	open := false
	fail := func(code int) decoded { got.code = code; return got }
	for {
		if len(b) < 1 {
			return got
		}
		fin, rsv, op := b[0]>>7 == 1, b[0]>>4&7, b[0]&15
		control := op >= 8
		if rsv != 0 || op > 2 && op < 8 || op > 10 || control && !fin || op == 0 && !open || (op == 1 || op == 2) && open {
			return fail(1002)
		}
		if len(b) < 2 {
			return got
		}
		if b[1]>>7 == 0 {
			return fail(1002)
		}
		n, head := uint64(b[1]&127), 2
		if control && n > 125 {
			return fail(1002)
		}
		if op == 2 {
			return fail(1003)
		}
		if n >= 126 {
			wide := 2
			if n == 127 {
				wide = 8
			}
			if len(b) < 2+wide {
				return got
			}
			short := uint64(126)
			if wide == 8 {
				short = 65536
			}
			n = 0
			for _, x := range b[2 : 2+wide] {
				n = n<<8 + uint64(x)
			}
			if head = 2 + wide; n < short || n>>63 == 1 {
				return fail(1002)
			}
		}
		if !control && n > uint64(limit-len(msg)) {
			return fail(1009)
		}
		if uint64(len(b)) < uint64(head)+4+n {
			return got
		}
		var payload []byte
		for i := range n {
			payload = append(payload, b[head+4+int(i)]^b[head+int(i%4)])
		}
		b = b[head+4+int(n):]
		switch op {
		case 8:
			switch {
			case n == 0:
				return fail(1000)
			case n == 1:
				return fail(1002)
			}
			code := int(payload[0])<<8 | int(payload[1])
			if code < 1000 || code >= 5000 || code >= 1015 && code < 3000 || code >= 1004 && code <= 1006 {
				return fail(1002)
			}
			if !utf8.Valid(payload[2:]) {
				return fail(1007)
			}
			return fail(code)
		case 9:
			got.pong = string(payload)
			continue
		case 10:
			continue
		}
		msg = append(msg, payload...)
		open = !fin
		// Bad text is refused as soon as nothing that follows could mend it.
		for rest := msg; len(rest) > 0; {
			r, size := utf8.DecodeRune(rest)
			if r == utf8.RuneError && size == 1 {
				if !fin && !utf8.FullRune(rest) {
					break
				}
				return fail(1007)
			}
			rest = rest[size:]
		}
		if fin {
			got.texts = append(got.texts, string(msg))
			msg = nil
		}
	}
}

// FuzzDecoder: any bytes, cut anywhere, are read as the twin reads them whole.
func FuzzDecoder(f *testing.F) {
	for _, c := range rawCases() {
		if len(c.bytes) < 300 {
			f.Add(c.bytes, uint16(3), uint16(len(c.bytes)/2))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, i, j uint16) {
		const limit = 200
		first := min(int(i), len(b))
		second := min(first+int(j), len(b))
		got := decode(t, limit, b[:first], b[first:second], b[second:])
		want := twin(b, limit)
		if got.String() != want.String() {
			t.Errorf("%x cut at %d and %d:\n got %s\nwant %s", b, first, second, got, want)
		}
	})
}
