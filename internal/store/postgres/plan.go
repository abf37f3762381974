package postgres

import (
	"crypto/sha256"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// digest is what is stored of a key or of a body: SHA-256 cut to 16 bytes.
type digest = [16]byte

func digestOf(b []byte) digest {
	sum := sha256.Sum256(b)
	return digest(sum[:16])
}

// plan is a batch on its way into the database: which requests are still to be
// stored, and what the others have been answered. Its memory is used again by
// the next batch; the results are the caller's.
type plan struct {
	requests []sequencer.Request
	results  []sequencer.Result
	state    []state // of each request
	items    []item  // of all requests, one after the other
	keyed    bool    // an item has a key

	first, mine map[keyOf]int32 // of pair
	channels    map[int64]int32 // channel id → index in ids

	// Arguments of appendSQL.
	ids     []int64 // channels, sorted
	counts  []int64 // messages for each
	sizes   []int64 // their bytes
	payload []byte  // of the last message
	args    struct {
		ids, counts, sizes, places, backs, payloads, keyPlaces, keyBacks, keys, bodies array
	}
}

type state uint8

const (
	live     state = iota // to be stored
	refused               // answered
	clashing              // refused as long as the request is stored whose key it uses for another body
)

// item is one broadcast.
type item struct {
	broadcast *sequencer.Broadcast
	channel   int64 // id
	key, body digest
	keyed     bool
	index     int32 // of the channel in plan.ids
	nth       int32 // of the batch's messages for the channel, from 1
	// sameAs is the earlier item of this batch under the same key and with the
	// same body, whose place it will share; -1 for none.
	sameAs int32
	// repeat: the key is in the database already, and was is where it stands.
	repeat bool
	was    sequencer.Placed
}

type keyOf struct {
	stream string
	key    digest
}

func (p *plan) reset(batch []sequencer.Request) {
	p.requests = batch
	p.results = make([]sequencer.Result, len(batch))
	p.state = append(p.state[:0], make([]state, len(batch))...)
	p.items, p.keyed = p.items[:0], false
	for _, request := range batch {
		for j := range request {
			b := &request[j]
			p.items = append(p.items, item{broadcast: b, sameAs: -1})
			if b.Key != "" {
				it := &p.items[len(p.items)-1]
				it.keyed, it.key, it.body = true, digestOf([]byte(b.Key)), digestOf(b.Data)
				p.keyed = true
			}
		}
	}
	p.pair()
}

// release lets go of the callers' payloads.
func (p *plan) release() {
	p.requests, p.results, p.payload = nil, nil, nil
	clear(p.items)
	p.items = p.items[:0]
	clear(p.first)
	clear(p.mine)
}

// each calls f with every live request and its items.
func (p *plan) each(f func(i int, items []item)) {
	next := 0
	for i, request := range p.requests {
		items := p.items[next : next+len(request)]
		next += len(request)
		if p.state[i] == live {
			f(i, items)
		}
	}
}

func (p *plan) anyLive() bool { return slices.Contains(p.state, live) }

// refuse takes request i out of the batch. Call pair when all that are to be
// refused have been.
func (p *plan) refuse(i int, err error) {
	p.state[i] = refused
	p.results[i] = sequencer.Result{Err: err}
}

// pair finds keys used twice within the batch. A second use with the same body
// will repeat the first one's answer; with another body its request is refused.
// It is run anew whenever a request has left the batch.
func (p *plan) pair() {
	if !p.keyed {
		return
	}
	if p.first == nil {
		p.first, p.mine = map[keyOf]int32{}, map[keyOf]int32{}
	}
	clear(p.first)
	for i, s := range p.state {
		if s == clashing {
			p.state[i], p.results[i] = live, sequencer.Result{}
		}
	}
	base := int32(0)
	next := 0
	for i, request := range p.requests {
		base, next = int32(next), next+len(request)
		if p.state[i] != live {
			continue
		}
		clear(p.mine)
		for n := base; n < int32(next); n++ {
			it := &p.items[n]
			it.sameAs = -1
			if !it.keyed || p.state[i] != live {
				continue
			}
			k := keyOf{it.broadcast.Stream, it.key}
			before, seen := p.first[k]
			if !seen {
				before, seen = p.mine[k]
			}
			switch {
			case !seen:
				p.mine[k] = n
			case p.items[before].body == it.body:
				it.sameAs = before
			default:
				p.refuse(i, sequencer.ErrKeyConflict)
				p.state[i] = clashing
			}
		}
		if p.state[i] == live {
			for k, n := range p.mine {
				p.first[k] = n
			}
		}
	}
}

// fresh says that the item is to be stored.
func (it *item) fresh() bool { return it.sameAs < 0 && !it.repeat }

// arrange lays out the arguments of appendSQL for what is live. It says whether
// there is anything to store.
func (p *plan) arrange() bool {
	if p.channels == nil {
		p.channels = map[int64]int32{}
	}
	clear(p.channels)
	p.ids = p.ids[:0]
	p.each(func(_ int, items []item) {
		for n := range items {
			if it := &items[n]; it.fresh() {
				if _, seen := p.channels[it.channel]; !seen {
					p.channels[it.channel] = 0
					p.ids = append(p.ids, it.channel)
				}
			}
		}
	})
	if len(p.ids) == 0 {
		return false
	}
	slices.Sort(p.ids)
	for n, id := range p.ids {
		p.channels[id] = int32(n)
	}
	p.counts = append(p.counts[:0], make([]int64, len(p.ids))...)
	p.sizes = append(p.sizes[:0], make([]int64, len(p.ids))...)
	p.each(func(_ int, items []item) {
		for n := range items {
			if it := &items[n]; it.fresh() {
				it.index = p.channels[it.channel]
				p.counts[it.index]++
				p.sizes[it.index] += int64(len(it.broadcast.Data))
				it.nth = int32(p.counts[it.index])
			}
		}
	})
	a := &p.args
	for _, numbers := range []*array{&a.ids, &a.counts, &a.sizes, &a.places, &a.backs, &a.keyPlaces, &a.keyBacks} {
		numbers.reset(pgtype.Int8OID)
	}
	a.payloads.reset(pgtype.ByteaOID)
	a.keys.reset(pgtype.UUIDOID)
	a.bodies.reset(pgtype.UUIDOID)
	for n, id := range p.ids {
		a.ids.int(id)
		a.counts.int(p.counts[n])
		a.sizes.int(p.sizes[n])
	}
	p.each(func(_ int, items []item) {
		for n := range items {
			it := &items[n]
			if !it.fresh() {
				continue
			}
			back := p.counts[it.index] - int64(it.nth)
			a.places.int(int64(it.index) + 1)
			a.backs.int(back)
			a.payloads.data(it.broadcast.Data)
			p.payload = it.broadcast.Data
			if it.keyed {
				a.keyPlaces.int(int64(it.index) + 1)
				a.keyBacks.int(back)
				a.keys.data(it.key[:])
				a.bodies.data(it.body[:])
			}
		}
	})
	return true
}

// committed is what one committed batch tells.
type committed struct {
	lasts, epochs []int64 // of plan.ids, in its order
	life          protocol.Epoch
	at            int64
}

// answer fills in the results of all live requests.
func (p *plan) answer(c committed) {
	placed := make([]sequencer.Placed, len(p.items))
	next := 0
	for i, request := range p.requests {
		begin := next
		next += len(request)
		if p.state[i] != live {
			continue
		}
		for n := begin; n < next; n++ {
			it := &p.items[n]
			switch {
			case it.sameAs >= 0:
				placed[n] = placed[it.sameAs]
				placed[n].Repeat = true
			case it.repeat:
				placed[n] = it.was
			default:
				placed[n] = sequencer.Placed{
					Position: protocol.Position{
						Epoch:  max(protocol.Epoch(c.epochs[it.index]), c.life),
						Offset: uint64(c.lasts[it.index] - p.counts[it.index] + int64(it.nth)),
					},
					At: c.at,
				}
			}
		}
		p.results[i] = sequencer.Result{Placed: placed[begin:next:next]}
	}
}
