package metrics

import "github.com/prometheus/client_golang/prometheus"

// Snapshot is what the view knows at one moment.
type Snapshot struct {
	// Workloads by state and mode.
	Workloads map[Class]int
	// Unreachable shims, Connections held or drained, ImageBytes of those that sleep, MemoryBytes of those awake.
	Unreachable, Connections int
	ImageBytes, MemoryBytes  uint64
	// WakesWaiting for their turn, WakesRunning, MemoryLack that the first of them waits for, and workloads whose activity can't
	// be measured.
	WakesWaiting, WakesRunning, Unmeasured int
	MemoryLack                             uint64
	// Cordoned: connections and packets wake nothing.
	Cordoned bool
	// DataFree is what is left below the data directory, in bytes, MinFree what must be; DataFree < 0: not known.
	DataFree int64
	MinFree  uint64
	// Freezes are notes that workloads stay awake.
	Freezes int
	// Store is nil without a durable tier.
	Store *Store
}

// Class of workloads.
type Class struct{ State, Mode string }

// collector turns a snapshot into gauges.
type collector struct{ snapshot func() Snapshot }

var (
	workloadsDesc   = prometheus.NewDesc("hibernate_workloads", "Workloads by state and mode.", []string{"state", "mode"}, nil)
	unreachableDesc = prometheus.NewDesc("hibernate_shims_unreachable", "Shims that do not answer.", nil, nil)
	connectionsDesc = prometheus.NewDesc("hibernate_held_connections", "Connections that the wake proxy holds or drains.", nil, nil)
	imageDesc       = prometheus.NewDesc("hibernate_asleep_image_bytes", "Size of the checkpoints of all that sleep.", nil, nil)
	waitingDesc     = prometheus.NewDesc("hibernate_wakes_waiting", "Workloads that wait for their turn to wake.", nil, nil)
	runningDesc     = prometheus.NewDesc("hibernate_wakes_running", "Wakes under way.", nil, nil)
	lackDesc        = prometheus.NewDesc("hibernate_memory_wanting_bytes", "Memory that is wanting for the first wake that waits for it.", nil, nil)
	unmeasuredDesc  = prometheus.NewDesc("hibernate_activity_broken", "Workloads whose activity can't be measured, and that are kept awake for that.", nil, nil)
	cordonedDesc    = prometheus.NewDesc("hibernate_cordoned", "1 while connections and packets wake nothing on this node (hibernatectl cordon).", nil, nil)
	freeDesc        = prometheus.NewDesc("hibernate_data_free_bytes", "Space that is left below data-dir.", nil, nil)
	minFreeDesc     = prometheus.NewDesc("hibernate_data_min_free_bytes", "Space that must be left there: with less nothing hibernates (min-free-disk).", nil, nil)
	freezesDesc     = prometheus.NewDesc("hibernate_freezes", "Notes that keep workloads of this node awake (hibernatectl freeze).", nil, nil)
	memoryDesc      = prometheus.NewDesc("hibernate_awake_memory_bytes", "Memory of all that is awake.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{workloadsDesc, unreachableDesc, connectionsDesc, imageDesc, memoryDesc, waitingDesc, runningDesc, lackDesc, unmeasuredDesc, cordonedDesc, freezesDesc,
		freeDesc, minFreeDesc,
		lagDesc, pendingDesc, stuckDesc, fencesDesc, usableDesc, claimedDesc, leaseDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	s := c.snapshot()
	for class, n := range s.Workloads {
		gauge(workloadsDesc, float64(n), class.State, class.Mode)
	}
	gauge(unreachableDesc, float64(s.Unreachable))
	gauge(connectionsDesc, float64(s.Connections))
	gauge(imageDesc, float64(s.ImageBytes))
	gauge(memoryDesc, float64(s.MemoryBytes))
	gauge(waitingDesc, float64(s.WakesWaiting))
	gauge(runningDesc, float64(s.WakesRunning))
	gauge(lackDesc, float64(s.MemoryLack))
	gauge(unmeasuredDesc, float64(s.Unmeasured))
	cordoned := 0.0
	if s.Cordoned {
		cordoned = 1
	}
	gauge(cordonedDesc, cordoned)
	gauge(freezesDesc, float64(s.Freezes))
	if s.DataFree >= 0 {
		gauge(freeDesc, float64(s.DataFree))
		gauge(minFreeDesc, float64(s.MinFree))
	}
	s.Store.collect(gauge)
}
