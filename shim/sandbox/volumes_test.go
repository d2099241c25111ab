package sandbox

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

func TestOutsideMounts(t *testing.T) {
	spec := &specs.Spec{
		Annotations: map[string]string{
			"dev.gvisor.spec.mount.cache.type": "tmpfs", "dev.gvisor.spec.mount.cache.source": "/pods/cache",
			"dev.gvisor.spec.mount.other.type": "bind", "dev.gvisor.spec.mount.other.source": "/pods/other",
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"rw"}},
			{Destination: "/etc/hosts", Type: "bind", Source: "/run/hosts", Options: []string{"rbind", "rw"}},
			{Destination: "/data", Type: "bind", Source: "/srv/data", Options: []string{"rbind", "rw"}},
			{Destination: "/conf", Type: "bind", Source: "/srv/conf", Options: []string{"rbind", "ro"}},
			{Destination: "/more", Type: "none", Source: "/srv/more", Options: []string{"bind"}},
			{Destination: "/cache", Type: "bind", Source: "/pods/cache"},
			{Destination: "/other", Type: "bind", Source: "/pods/other"},
		},
	}
	want := []outsideMount{{"/data", "/srv/data", false}, {"/conf", "/srv/conf", true}, {"/more", "/srv/more", false}, {"/other", "/pods/other", false}}
	if got := outsideMounts(spec); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// What becomes of a restore over a mount, by what is known of it.
func TestMountsJudged(t *testing.T) {
	type print = snapshot.Print
	at := time.Unix(1000, 0).UTC()
	one, other := print{FileSystem: "a", Entries: 3, Newest: at, Digest: "1"}, print{FileSystem: "a", Entries: 4, Newest: at.Add(time.Hour), Digest: "2"}
	none, gone := print{FileSystem: "a", Digest: "0"}, print{FileSystem: "b", Digest: "0"}
	elsewhere := "it was put to sleep on the node n2"
	for name, c := range map[string]struct {
		compared
		allowed bool
		policy  config.VolumePolicy
		told    string
		refused string
		stops   bool
	}{
		"the same":                           {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: one}},
		"changed":                            {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: other}, told: "files of the mount /data were changed while it slept (3 entries then, 4 entries now, the latest change at 1970-01-01T01:16:40Z)"},
		"changed, and refused":               {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: other}, policy: config.VolumeRefuse, refused: "on-volume-change is refuse; look at the files"},
		"changed, refused, and allowed":      {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: other}, policy: config.VolumeRefuse, allowed: true, told: "were changed while it slept"},
		"the same, refused if not":           {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: one}, policy: config.VolumeRefuse},
		"not known":                          {compared: compared{now: one}},
		"emptied":                            {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: none}, told: "(3 entries then, 0 entries now)"},
		"not mounted":                        {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: gone}, refused: "is something not mounted?; mount it", stops: true},
		"not mounted, and allowed":           {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: gone}, allowed: true, refused: "is something not mounted?", stops: true},
		"older":                              {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: one, older: true}, refused: "it is not restored over the mount /data: it is not the newest"},
		"older, of before this":              {compared: compared{now: one, older: true}, refused: "it is not the newest"},
		"older, and allowed":                 {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: other, older: true}, allowed: true, told: "restored over the mount /data, as it was allowed, though it is not the newest"},
		"older, with nothing there":          {compared: compared{then: snapshot.Volume{Print: none}, known: true, now: none, older: true}},
		"older, with nothing there by then":  {compared: compared{then: snapshot.Volume{Print: none}, known: true, now: one, older: true}, refused: "it is not the newest"},
		"older, with nothing there any more": {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: none, older: true}, refused: "it is not the newest"},
		"elsewhere":                          {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: one, elsewhere: elsewhere}, refused: elsewhere + ", and memory that files have outrun destroys them; where the program can bear that, hibernatectl wake --allow-stale-volumes does it once, and the annotation io.containerd.hibernate/allow-stale-volumes = true always", stops: true},
		"elsewhere, and allowed":             {compared: compared{then: snapshot.Volume{Print: one}, known: true, now: one, elsewhere: elsewhere}, allowed: true, told: "though " + elsewhere},
		"elsewhere, with nothing there":      {compared: compared{then: snapshot.Volume{Print: none}, known: true, now: gone, elsewhere: elsewhere}},
		"elsewhere and older":                {compared: compared{now: one, elsewhere: elsewhere, older: true}, refused: elsewhere, stops: true},
		"read-only":                          {compared: compared{outsideMount: outsideMount{readOnly: true}, then: snapshot.Volume{Print: one}, known: true, now: other, elsewhere: elsewhere, older: true}, told: "the read-only mount /data has changed (3 entries then, 4 entries now"},
		"read-only, the same":                {compared: compared{outsideMount: outsideMount{readOnly: true}, then: snapshot.Volume{Print: one}, known: true, now: one, elsewhere: elsewhere, older: true}},
	} {
		t.Run(name, func(t *testing.T) {
			c.destination, c.source = "/data", "/srv/data"
			told, err := c.judge(c.allowed, c.policy)
			if !strings.Contains(told, c.told) || (told == "") != (c.told == "") {
				t.Errorf("told: %q", told)
			}
			var stale *staleError
			var stop *stopError
			if errors.As(err, &stale) != (c.refused != "") || errors.As(err, &stop) != c.stops {
				t.Fatalf("refused: %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("refused as %q", err)
			}
		})
	}
}
