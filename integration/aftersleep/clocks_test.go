package aftersleep

import (
	"strings"
	"testing"
	"time"
)

// nap is how long programs sleep here.
const nap = 3 * time.Second

// readings are what the program's clocks say, in seconds.
type readings struct {
	Real, Monotonic, Raw, Boot, Uptime, Process, Thread, Started float64
	Boottime                                                     string // btime of /proc/stat
	Ticks                                                        int    // of its CPU, by /proc/self/stat
}

const readClocks = `
def read():
    with open("/proc/uptime") as f: uptime = float(f.read().split()[0])
    with open("/proc/stat") as f: btime = [l for l in f if l.startswith("btime")][0]
    with open("/proc/self/stat") as f: stat = f.read().rsplit(")", 1)[1].split()
    return dict(Real=time.time(), Monotonic=time.monotonic(), Raw=time.clock_gettime(time.CLOCK_MONOTONIC_RAW), Boot=time.clock_gettime(time.CLOCK_BOOTTIME),
        Uptime=uptime, Process=time.process_time(), Thread=time.thread_time(), Started=float(stat[19]), Boottime=btime, Ticks=int(stat[11])+int(stat[12]))
import time
answer = read()
`

// The wall clock is the host's; all others but those of the CPU go on by as much: none stands still, and none goes back.
func TestClocks(t *testing.T) {
	p := start(t, "clocks", nil)
	begun := time.Now()
	before := do[readings](p, readClocks)
	read := time.Now()
	p.asleepFor(nap)
	asked := time.Now()
	after := do[readings](p, readClocks)
	ended := time.Now()
	least, most := asked.Sub(read).Seconds()-0.05, ended.Sub(begun).Seconds()+0.05
	for name, passed := range map[string]float64{
		"the wall clock": after.Real - before.Real, "CLOCK_MONOTONIC": after.Monotonic - before.Monotonic,
		"CLOCK_MONOTONIC_RAW": after.Raw - before.Raw, "CLOCK_BOOTTIME": after.Boot - before.Boot,
	} {
		t.Logf("%s: %.3f s passed, between %.3f and %.3f", name, passed, least, most)
		if passed < least || passed > most {
			t.Errorf("of %s %.3f s passed, not between %.3f and %.3f", name, passed, least, most)
		}
	}
	if now := float64(ended.UnixMicro()) / 1e6; after.Real > now+0.05 || after.Real < now-most {
		t.Errorf("the wall clock is %f, the host's %f", after.Real, now)
	}
	t.Logf("uptime %.2f → %.2f, btime %q → %q, start of the process %.0f → %.0f", before.Uptime, after.Uptime, before.Boottime, after.Boottime, before.Started, after.Started)
	if after.Uptime < before.Uptime || after.Boottime != before.Boottime || after.Started != before.Started {
		t.Errorf("uptime %f, then %f; %s, then %s; started %f, then %f", before.Uptime, after.Uptime, before.Boottime, after.Boottime, before.Started, after.Started)
	}
	for name, passed := range map[string]float64{"the process's CPU": after.Process - before.Process, "its ticks": float64(after.Ticks-before.Ticks) / 100} {
		t.Logf("%s: %.3f s", name, passed)
		if passed < 0 || passed > nap.Seconds() {
			t.Errorf("%s went on by %f s", name, passed)
		}
	}
}

// Timers whose time comes in the sleep are due at the wake, all at once, each once; a loop that sleeps between its turns makes none up.
func TestTimersFireTogether(t *testing.T) {
	p := start(t, "timers", nil)
	var late struct {
		Fired []string
		At    []float64
		Turns int
		Begun float64
	}
	for unit := 1.0; ; unit *= 2 { // on a busy machine it falls asleep after the first timer's time
		begun := time.Now()
		p.do(`
import signal, asyncio
unit = ` + number(unit) + `
fired, at, turns, begun = [], [], 0, time.monotonic()
def fire(what):
    fired.append(what); at.append(time.monotonic() - begun)
for n in (3, 4, 5):
    threading.Timer(n * unit, fire, ("thread %d" % n,)).start()
def ask():
    loop = asyncio.new_event_loop()
    loop.call_later(3.5 * unit, fire, "epoll")
    loop.call_later(6 * unit, loop.stop)
    loop.run_forever()
threading.Thread(target=ask, daemon=True).start()
def turn():
    global turns
    while True:
        time.sleep(unit / 4)
        turns += 1
        if time.monotonic() - begun > 6 * unit: return
threading.Thread(target=turn, daemon=True).start()
`)
		p.sleep()
		asleep := time.Since(begun).Seconds()
		time.Sleep(time.Duration(6 * unit * float64(time.Second))) // until all are due
		p.wake()
		late = do[struct {
			Fired []string
			At    []float64
			Turns int
			Begun float64
		}](p, `
while len(fired) < 4: time.sleep(0.01)
answer = dict(Fired=sorted(fired), At=sorted(at), Turns=turns, Begun=begun)`)
		t.Logf("unit %.0f s, asleep after %.2f s: %v at %v, %d turns", unit, asleep, late.Fired, late.At, late.Turns)
		if asleep < 2.5*unit || unit > 8 {
			if late.At[0] < 6*unit || late.At[3]-late.At[0] > unit {
				t.Errorf("they fired at %v s, though it slept until %.1f", late.At, 6*unit)
			}
			if most := int(asleep/unit*4) + 6; late.Turns > most {
				t.Errorf("the loop has made %d turns, more than %d", late.Turns, most)
			}
			break
		}
	}
	if got := strings.Join(late.Fired, ", "); got != "epoll, thread 3, thread 4, thread 5" {
		t.Errorf("fired: %s", got)
	}
}

// What expires by the wall clock has expired at the wake, as a token has.
func TestTokensExpire(t *testing.T) {
	p := start(t, "tokens", nil)
	p.do(`
import hmac, hashlib, base64, json
def b64(b): return base64.urlsafe_b64encode(b).rstrip(b"=")
def sign(claims):
    body = b64(b'{"alg":"HS256"}') + b"." + b64(json.dumps(claims).encode())
    return body + b"." + b64(hmac.new(b"key", body, hashlib.sha256).digest())
def valid(token):
    claims = json.loads(base64.urlsafe_b64decode(token.split(b".")[1] + b"=="))
    return time.time() < claims["exp"]
now = time.time()
short, long = sign({"exp": now + 2}), sign({"exp": now + 3600})
`)
	p.asleepFor(nap)
	if got := do[[]bool](p, "answer = [valid(short), valid(long)]"); got[0] || !got[1] {
		t.Errorf("the token of two seconds is valid: %v, that of an hour: %v", got[0], got[1])
	}
}
