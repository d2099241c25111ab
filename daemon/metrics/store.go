package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// uploads counts what goes to the durable tier.
type uploads struct {
	uploads          *prometheus.CounterVec
	uploadBytes      *prometheus.CounterVec
	uploadSeconds    prometheus.Histogram
	storeOps         *prometheus.CounterVec
	storeBytes       *prometheus.CounterVec
	collectedObjects prometheus.Counter
	collectedBytes   prometheus.Counter
	expired          *prometheus.CounterVec
	claims           *prometheus.CounterVec
	released, fenced prometheus.Counter
}

func newUploads(registry *prometheus.Registry) uploads {
	u := uploads{
		uploads:          counters("uploads_total", "Uploads to the store that ended, by how: committed, replaced by a newer one, failed.", "outcome"),
		uploadBytes:      counters("upload_bytes_total", "Bytes of committed uploads: of their files (image), and sent for them.", "kind"),
		uploadSeconds:    prometheus.NewHistogram(histogram("upload_seconds", "Time that a committed upload took.", 0.05, 20)),
		storeOps:         counters("store_operations_total", "Operations of the store, each try, by method and result.", "op", "result"),
		storeBytes:       counters("store_bytes_total", "Bytes of objects that were written to the store or read from it.", "op"),
		collectedObjects: counter("store_collected_objects_total", "Objects that were deleted from the store as garbage."),
		collectedBytes:   counter("store_collected_bytes_total", "Bytes of those."),
		expired:          counters("expired_total", "What delete-after has ended: sleepers, and snapshots in the store of workloads that were gone.", "what"),
		claims: counters("claims_total", "Requests for the right to run a workload with an identity, by what came of them: held, confirmed, new, "+
			"taken-over, handed-over, unconfirmed; owned, no-store, failed.", "result"),
		released: counter("claims_released_total", "Workloads with an identity that were given up for other nodes, asleep or ended."),
		fenced:   counter("claims_fenced_total", "Workloads that another node has taken over from this one: what ran here is ended."),
	}
	registry.MustRegister(u.claims, u.released, u.fenced, u.uploads, u.uploadBytes, u.uploadSeconds, u.storeOps, u.storeBytes, u.collectedObjects, u.collectedBytes, u.expired)
	return u
}

// Uploaded counts an upload that ended.
func (u uploads) Uploaded(outcome string, sent, image int64, took time.Duration) {
	u.uploads.WithLabelValues(outcome).Inc()
	if outcome != "committed" {
		return
	}
	u.uploadBytes.WithLabelValues("sent").Add(float64(sent))
	u.uploadBytes.WithLabelValues("image").Add(float64(image))
	u.uploadSeconds.Observe(took.Seconds())
}

// StoreOp counts an operation of the store.
func (u uploads) StoreOp(op store.Op, result string, bytes int64) {
	u.storeOps.WithLabelValues(string(op), result).Inc()
	if bytes > 0 {
		u.storeBytes.WithLabelValues(string(op)).Add(float64(bytes))
	}
}

// Collected counts what a collection has deleted.
func (u uploads) Collected(objects int, bytes int64) {
	u.collectedObjects.Add(float64(objects))
	u.collectedBytes.Add(float64(bytes))
}

// Expired counts what delete-after has ended.
func (u uploads) Expired(what string) { u.expired.WithLabelValues(what).Inc() }

// Claimed counts a request for the right to run a workload with an identity.
func (u uploads) Claimed(result string) { u.claims.WithLabelValues(result).Inc() }

// Released counts a right that was given up.
func (u uploads) Released() { u.released.Inc() }

// Fenced counts a right that another node has taken.
func (u uploads) Fenced() { u.fenced.Inc() }

// Store is what is known of the durable tier at one moment.
type Store struct {
	Fences bool // its conditional writes were found to be reliable
	Usable bool // as of the last operation
	// Lag is how long the store has been without the newest snapshot of the workload that has waited longest.
	Lag            time.Duration
	Waiting, Stuck int // uploads; those that are not tried again
	// Claimed workloads with an identity, and how long the lease lasts that lets them run.
	Claimed int
	Lease   time.Duration
}

var (
	lagDesc     = prometheus.NewDesc("hibernate_upload_lag_seconds", "Age of the oldest snapshot that is not in the store.", nil, nil)
	pendingDesc = prometheus.NewDesc("hibernate_uploads_waiting", "Workloads whose newest snapshot is not in the store yet.", nil, nil)
	stuckDesc   = prometheus.NewDesc("hibernate_uploads_stuck", "Those of them that are not tried again: a person must look.", nil, nil)
	fencesDesc  = prometheus.NewDesc("hibernate_store_fences", "1 when the store's conditional writes can be relied on.", nil, nil)
	claimedDesc = prometheus.NewDesc("hibernate_claimed_workloads", "Workloads with an identity that this node alone may run.", nil, nil)
	leaseDesc   = prometheus.NewDesc("hibernate_lease_seconds", "Time until they are put to sleep unless the store confirms that this node lives; 0 without a lease.", nil, nil)
	usableDesc  = prometheus.NewDesc("hibernate_store_usable", "0 when the store didn't answer, or refused, when it was used last.", nil, nil)
)

// collect tells the gauges, where there is a store.
func (s *Store) collect(gauge func(desc *prometheus.Desc, value float64, labels ...string)) {
	if s == nil {
		return
	}
	gauge(lagDesc, s.Lag.Seconds())
	gauge(pendingDesc, float64(s.Waiting))
	gauge(stuckDesc, float64(s.Stuck))
	gauge(fencesDesc, number(s.Fences))
	gauge(usableDesc, number(s.Usable))
	gauge(claimedDesc, float64(s.Claimed))
	gauge(leaseDesc, s.Lease.Seconds())
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
