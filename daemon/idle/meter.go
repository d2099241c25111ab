package idle

// meterDoubt is how many samples must show data of the wake proxy's without a packet in the shim's counters, before these
// are taken for broken. One may fall between the two.
const meterDoubt = 2

// meter compares two measurements of the same traffic: what the wake proxy passes on goes through the sandbox's link, where
// the shim counts packets. Counters that don't move with it would tell of idleness that isn't.
type meter struct {
	doubts int
	broken bool
}

// check takes two samples in a row, and returns a reason to stay awake while the counters are broken.
func (m *meter) check(last, s Sample) []Reason {
	switch {
	case s.Packets != last.Packets:
		*m = meter{}
	case s.ProxyBytes > last.ProxyBytes: // a proxy made anew counts from 0
		if m.doubts++; m.doubts >= meterDoubt {
			m.broken = true
		}
	}
	if !m.broken {
		return nil
	}
	return []Reason{{Meter, "the shim counts no packets though the wake proxy passed data on: activity can't be measured"}}
}
