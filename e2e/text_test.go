package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
)

// longText is real prose of the project, with code, tables and all: what the
// demo answers, the protocol, the architecture.
func longText(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	for _, name := range []string{"../internal/demo/answer.txt", "../protocol/PROTOCOL.md", "../docs/ARCHITECTURE.md"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

// tokens cuts text the way a language model streams it: words with the space
// before them, long words in pieces, punctuation alone. Joined they are the
// text again.
func tokens(text string) []string {
	var out []string
	start, runes := 0, 0
	kind := func(r rune) int {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			return 1
		case r == ' ':
			return 2
		}
		return 3
	}
	var last rune
	for i, r := range text {
		if i > start && (kind(r) != kind(last) && kind(last) != 2 || runes >= 6) {
			out = append(out, text[start:i])
			start, runes = i, 0
		}
		last = r
		runes++
	}
	return append(out, text[start:])
}

func unquote(data string) string {
	var s string
	json.Unmarshal([]byte(data), &s)
	return s
}

func joined(got []message) string {
	var b strings.Builder
	for _, m := range got {
		b.WriteString(unquote(m.data))
	}
	return b.String()
}

// token is what an application streams to clients that are given no offsets:
// its own index beside the text.
type token struct {
	I int    `json:"i"`
	T string `json:"t"`
}

// The main job on real input: a long real text, token by token, to the stock
// clients, to ours and to a browser while their connections are cut. Each of
// them holds the source in the end, by hash.
func TestMainJob_ALongTextReachesEveryClientWhole(t *testing.T) {
	t.Parallel()
	text := longText(t)
	toks := tokens(text)
	if n := scale(5000, len(toks)); len(toks) > n {
		toks = toks[:n]
		text = strings.Join(toks, "")
	}
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	const stream, indexed = "answer/1", "answer/1/indexed"

	cl, stock, rails := startNode(t, "ours.mjs"), startNode(t, "anycable.mjs"), startNode(t, "rails.mjs")
	clPx, stockPx, railsPx, tabPx := newProxy(t, s.addr), newProxy(t, s.addr), newProxy(t, s.addr), newProxy(t, s.addr)
	tab := openReader(t, s, tabPx.ws(), stream, "")
	cl.do("client", map[string]any{"url": clPx.ws(), "minDelay": 20, "maxDelay": 200})
	cl.do("stream", map[string]any{"id": "a", "name": stream, "after": "start", "quiet": true})
	stock.do("connect", map[string]any{"url": stockPx.ws(), "reconnect": 50})
	stock.do("subscribe", map[string]any{"id": "a", "name": stream})
	stock.subscribed("a", 10*time.Second)
	rails.do("connect", map[string]any{"url": railsPx.ws(), "stale": 3})
	rails.do("subscribe", map[string]any{"id": "a", "params": fromStart(s, indexed), "name": indexed})
	rails.wait(10*time.Second, "connected", "a")

	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cuts := 0
	cutting.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(700 * time.Millisecond):
			}
			hit := []*proxy{clPx, tabPx}
			if stock.isSubscribed("a") {
				hit = append(hit, stockPx)
			}
			if i%10 == 3 {
				hit = append(hit, railsPx) // its stock reconnect takes seconds
			}
			for _, px := range hit {
				if i%2 == 0 {
					cuts += px.cut()
				} else {
					cuts += px.cutMidFrame()
				}
			}
		}
	})
	// One writer in order, as a model's worker would send, 300 tokens a second.
	pace := time.NewTicker(time.Second / 300)
	defer pace.Stop()
	for i, tok := range toks {
		<-pace.C
		p.must(stream, jsonText(tok))
		b, _ := json.Marshal(token{i, tok})
		p.must(indexed, string(b))
	}
	close(stop)
	cutting.Wait()

	last := s.head(stream).Last
	cl.awaitLast("a", last, 20*time.Second)
	stock.awaitLast("a", last, 20*time.Second)
	tab.awaitLast(last, 20*time.Second)
	rails.tryUntil(40*time.Second, func() bool {
		got := rails.got["a"]
		var tok token
		if len(got) > 0 {
			json.Unmarshal([]byte(got[len(got)-1].data), &tok)
		}
		return tok.I == len(toks)-1
	})
	want := sha(text)
	for name, got := range map[string]string{
		"bundled client": joined(cl.messages("a")), "browser": joined(tab.got()),
		"@anycable/core": joined(stock.messages("a")), "@rails/actioncable": byIndex(rails.messages("a")),
	} {
		if sha(got) != want {
			t.Errorf("%s holds %d of %d bytes, another hash; it ends …%q", name, len(got), len(text), string(tailOf([]rune(got), 40)))
		}
	}
	judge(s.log(stream), false).delivered("bundled client", cl.messages("a"), 0, true).
		delivered("browser", tab.got(), 0, true).
		delivered("@anycable/core", stock.messages("a"), 0, true).report(t)
	if !t.Failed() {
		throughOurClient.Add(2 * int64(last))
		figure(t, "main job: %d tokens, %d bytes, %d cuts: bundled client, Chromium, @anycable/core and @rails/actioncable hold the source by hash", len(toks), len(text), cuts)
	}
}

// byIndex is what an application of the stock Rails client does: it takes the
// next index and drops those it has. After a reconnect the position in its
// identifier brings everything from the start again, in order.
func byIndex(got []message) string {
	var b strings.Builder
	next := 0
	for _, m := range got {
		var tok token
		json.Unmarshal([]byte(m.data), &tok)
		switch {
		case tok.I == next:
			b.WriteString(tok.T)
			next++
		case tok.I > next:
			return b.String() + fmt.Sprintf("[%d is missing]", next)
		}
	}
	return b.String()
}

// B161: 2,000 tokens, the link cut every 200 ms, two handles on the stream, and
// one of them goes away and comes back 20 times. The text is the source in both.
func TestB161_CutsTwoHandlesAndSwitchingKeepTheText(t *testing.T) {
	t.Parallel()
	toks := tokens(longText(t))[:2000]
	s := newServer(t)
	px := newProxy(t, s.addr)
	p := newPublisher(t, s.url(""))
	cl := startNode(t, "ours.mjs")
	cl.do("client", map[string]any{"url": px.ws(), "minDelay": 10, "maxDelay": 100})
	cl.do("stream", map[string]any{"id": "tab1", "name": "doc", "after": "start", "quiet": true})
	cl.do("stream", map[string]any{"id": "tab2", "name": "doc", "after": "start", "quiet": true})

	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
				px.cut()
			}
		}
	})
	switches := 0
	pace := time.NewTicker(time.Second / 400)
	defer pace.Stop()
	for i, tok := range toks {
		<-pace.C
		p.must("doc", jsonText(tok))
		if i%100 == 50 && switches < 20 {
			// The reader looks at another stream and comes back where it was.
			cl.call(5*time.Second, "swap", map[string]any{"id": "tab2", "name": "doc", "other": fmt.Sprintf("other/%d", switches)}, nil)
			switches++
		}
	}
	close(stop)
	cutting.Wait()
	last := s.head("doc").Last
	v := judge(s.log("doc"), false)
	for _, tab := range []string{"tab1", "tab2"} {
		cl.awaitLast(tab, last, 20*time.Second)
		got := cl.messages(tab)
		v.delivered(tab, got, 0, true)
		if sha(joined(got)) != sha(strings.Join(toks, "")) {
			t.Errorf("%s holds another text", tab)
		}
		throughOurClient.Add(int64(len(got)))
	}
	v.report(t)
}
