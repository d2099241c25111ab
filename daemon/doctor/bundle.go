package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
)

// leftOut stands for what is not told.
const leftOut = "(left out)"

// bundleAbout is the bundle's first file.
const bundleAbout = `What hibernatectl doctor --bundle has collected, for who helps with a node.

doctor.txt, doctor.json   the checks' results
versions.json             of the programs and the kernel
configuration.toml        the configuration file's known keys, without commands and what a URL may have of secrets
workloads.json            what the shims and hibernated say of each workload, with the last sleep and wake
wakes/                    the last wakes of each workload
journals.json             the transition that each shim has begun last, and its newest step
records.json              the shims' records: addresses, processes
node.json                 what hibernated says of the node
metrics.txt, health.txt   as hibernated serves them

Not in it: snapshots, memory, environment, specifications, files and output of workloads, what their hooks say, keys, credentials; the logs of
hibernated and containerd (journalctl -u hibernated -u containerd), in which a failed hook's words may stand.
`

// Collected is what goes into a bundle. What is nil is left out.
type Collected struct {
	Results    []Result
	Text       string // the results as people read them
	Versions   map[string]string
	ConfigFile string
	Workloads  []*daemonv1.Workload
	Wakes      map[string][]*shimv1.Transition // by NAMESPACE/ID
	Records    []handover.Record
	Node       *daemonv1.NodeResponse
	Metrics    string
	Health     string
	At         time.Time
}

// WriteBundle writes a gzipped tar archive. Nothing of a workload's memory, environment or secrets is in it: of what it doesn't know it tells
// nothing.
func WriteBundle(out io.Writer, c Collected) error {
	zip := gzip.NewWriter(out)
	b := &bundle{tar: tar.NewWriter(zip), at: c.At}
	b.add("README.txt", []byte(bundleAbout))
	b.add("doctor.txt", []byte(c.Text))
	b.json("doctor.json", c.Results)
	b.json("versions.json", c.Versions)
	b.add("configuration.toml", configurationFile(c.ConfigFile))
	list := &daemonv1.ListResponse{}
	for _, w := range c.Workloads {
		list.Workloads = append(list.Workloads, cleanWorkload(w))
	}
	b.proto("workloads.json", list)
	for name, wakes := range c.Wakes {
		told := &daemonv1.WakesResponse{}
		for _, w := range wakes {
			told.Wakes = append(told.Wakes, cleanTransition(w))
		}
		b.proto("wakes/"+strings.ReplaceAll(name, "/", "_")+".json", told)
	}
	b.json("journals.json", journals(c.Records))
	b.json("records.json", c.Records)
	if c.Node != nil {
		b.proto("node.json", c.Node)
	}
	b.add("metrics.txt", []byte(c.Metrics))
	b.add("health.txt", []byte(c.Health))
	return errors.Join(b.err, b.tar.Close(), zip.Close())
}

// bundle is an archive that is being written. The first error stays.
type bundle struct {
	tar *tar.Writer
	at  time.Time
	err error
}

func (b *bundle) add(name string, data []byte) {
	if b.err != nil || len(data) == 0 {
		return
	}
	b.err = b.tar.WriteHeader(&tar.Header{Name: "hibernate-doctor/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: b.at, Format: tar.FormatPAX})
	if b.err == nil {
		_, b.err = b.tar.Write(data)
	}
}

func (b *bundle) json(name string, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	b.err = errors.Join(b.err, err)
	b.add(name, data)
}

func (b *bundle) proto(name string, m proto.Message) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	var text bytes.Buffer
	if err == nil {
		err = json.Indent(&text, raw, "", "  ")
	}
	b.err = errors.Join(b.err, err)
	b.add(name, text.Bytes())
}

// journal is what is read of a shim's journal.
type journal struct {
	Workload  string    `json:"workload"`
	Operation string    `json:"operation"`
	ID        string    `json:"id"`
	Step      string    `json:"step"`
	Time      time.Time `json:"time"`
	Error     string    `json:"error,omitempty"`
}

func journals(records []handover.Record) (all []journal) {
	for _, r := range records {
		j := journal{}
		data, err := os.ReadFile(filepath.Join(r.Bundle, "hibernate", "journal.json"))
		if err == nil {
			err = json.Unmarshal(data, &j)
		}
		if err != nil {
			j = journal{Error: err.Error()}
		}
		j.Workload = r.Namespace + "/" + r.ID
		all = append(all, j)
	}
	return all
}

// cleanWorkload leaves out what people, or a workload's programs, have written.
func cleanWorkload(w *daemonv1.Workload) *daemonv1.Workload {
	w = proto.CloneOf(w)
	w.Unreachable, w.WakeWaits = clean(w.GetUnreachable()), clean(w.GetWakeWaits())
	if w.Copies != nil {
		w.Copies.Error = clean(w.Copies.GetError())
	}
	s := w.GetStatus()
	if s == nil {
		return w
	}
	s.LastHibernate, s.LastWake, s.Waits, s.SlowPath = cleanTransition(s.GetLastHibernate()), cleanTransition(s.GetLastWake()), clean(s.GetWaits()), clean(s.GetSlowPath())
	for _, r := range s.GetBlockers() {
		r.Detail = clean(r.GetDetail())
	}
	for _, r := range s.GetMended() {
		r.Detail = clean(r.GetDetail())
	}
	for _, k := range s.GetSettings() {
		if !shown(k.GetKey()) {
			k.Value = leftOut
		}
	}
	return w
}

func cleanTransition(t *shimv1.Transition) *shimv1.Transition {
	if t == nil {
		return nil
	}
	t = proto.CloneOf(t)
	t.Detail, t.Reason = clean(t.GetDetail()), clean(t.GetReason())
	for _, r := range t.GetLadder() {
		r.Detail = clean(r.GetDetail())
	}
	return t
}

// clean cuts a text of ours where a hook's own words, or a specification's values, may begin.
func clean(text string) string {
	for _, mark := range []string{"it said", "environment", "process.env", "process.args"} {
		if at := strings.Index(strings.ToLower(text), mark); at >= 0 {
			text = text[:at+len(mark)] + " " + leftOut
		}
	}
	return text
}

// shown reports whether a key's value may be told: those that hold commands may not, nor what is no key.
func shown(key string) bool {
	hidden := []string{"hook-before-sleep", "hook-after-wake", "probe-exec", "store-key-command", "runsc-flags"}
	return !slices.Contains(hidden, key) && slices.ContainsFunc(config.Keys(), func(k config.Key) bool { return k.Name == key })
}

// configurationFile is a configuration file's known keys.
func configurationFile(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return []byte("# " + err.Error() + "\n")
	}
	var all map[string]any
	if err := toml.Unmarshal(data, &all); err != nil {
		return []byte("# it can't be read as TOML\n") // the error may cite a line
	}
	text, err := toml.Marshal(cleanTable(all))
	if err != nil {
		return []byte("# it can't be told\n")
	}
	return text
}

func cleanTable(all map[string]any) map[string]any {
	told := make(map[string]any)
	for key, value := range all {
		switch v := value.(type) {
		case []any:
			var rules []any
			for _, element := range v {
				if rule, is := element.(map[string]any); is {
					rules = append(rules, cleanTable(rule))
				}
			}
			if rules != nil && key == "match" {
				told[key] = rules
				continue
			}
		case string:
			if key == "store" {
				told[key] = cleanURL(v)
				continue
			}
		}
		switch {
		case shown(key), key == "namespace", key == "image":
			told[key] = value
		default:
			told[key] = leftOut
		}
	}
	return told
}

// cleanURL keeps of a store's URL what is known to be no secret.
func cleanURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return leftOut
	}
	query := url.Values{}
	for key, values := range u.Query() {
		if !slices.Contains([]string{"endpoint", "region", "ca", "credentials", "profile", "checksum", "lookup"}, key) {
			query.Set(key, leftOut)
			continue
		}
		for _, v := range values {
			if e, err := url.Parse(v); err == nil && e.User != nil {
				e.User = nil
				v = e.String()
			}
			query.Add(key, v)
		}
	}
	return fmt.Sprintf("%s://%s%s?%s", u.Scheme, u.Host, u.Path, query.Encode())
}
