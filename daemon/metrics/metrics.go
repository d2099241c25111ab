// Package metrics holds what hibernated tells Prometheus. All names begin with hibernate_.
//
// Transitions are counted from the shims' events, whoever caused them: a wake by a packet, of which the daemon learns
// afterwards, counts as one by a connection does. What was told before this daemon began is not counted.
package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// Metrics of one daemon, with a registry of their own.
type Metrics struct {
	registry *prometheus.Registry

	wakes            *prometheus.CounterVec
	wakeSeconds      *prometheus.HistogramVec
	wakeCallErrors   prometheus.Counter
	hibernations     *prometheus.CounterVec
	hibernateSeconds prometheus.Histogram
	refusals         *prometheus.CounterVec
	observed         *prometheus.CounterVec
	observedBytes    *prometheus.CounterVec
	held             *prometheus.CounterVec
	accepted         prometheus.Counter
	drained          *prometheus.CounterVec
	dialSeconds      prometheus.Histogram
	limited          prometheus.Counter
	proxyBytes       *prometheus.CounterVec
	admission
	uploads
}

// New returns the metrics of a daemon of the given version. snapshot is asked at each scrape.
func New(version string, snapshot func() Snapshot) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		wakes:    counters("wakes_total", "Wakes that ended, by what caused them and how they ended.", "reason", "outcome"),
		wakeSeconds: prometheus.NewHistogramVec(histogram("wake_seconds",
			"Time from the cause of a wake to the open gate.", 0.05, 14), []string{"outcome"}),
		wakeCallErrors: counter("wake_call_errors_total", "Wakes that the shim answered with an error, or not at all."),
		hibernations:   counters("hibernations_total", "Hibernations that ended, by how.", "outcome"),
		hibernateSeconds: prometheus.NewHistogram(histogram("hibernate_seconds",
			"Time from the request to the freed memory.", 0.05, 14)),
		refusals: counters("idle_requests_refused_total", "Requests of the idle policy that did not end in sleep, by why.", "outcome"),
		observed: counters("observed_hibernations_total", "Times that a workload in mode observe would have been put to sleep.", "namespace"),
		observedBytes: counters("observed_freed_bytes_total",
			"Memory that those hibernations would have freed, each time anew.", "namespace"),
		held:     counters("holds_total", "Times that connections began to wait for a wake.", "namespace"),
		accepted: counter("proxy_connections_total", "Connections that the wake proxy took from a backlog."),
		drained:  counters("proxy_connections_ended_total", "Connections of the wake proxy that ended, by how.", "result"),
		dialSeconds: prometheus.NewHistogram(histogram("proxy_dial_seconds",
			"Time from taking a connection to being connected to the workload.", 0.0005, 16)),
		limited:    counter("proxy_limited_total", "Times that connections waited because of a limit."),
		proxyBytes: counters("proxy_bytes_total", "Bytes that the wake proxy passed on, told when a connection ends.", "direction"),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "hibernate_build_info", Help: "Always 1; the labels tell the build.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.admission, m.uploads = newAdmission(m.registry), newUploads(m.registry)
	m.registry.MustRegister(build, collector{snapshot}, m.wakes, m.wakeSeconds, m.wakeCallErrors, m.hibernations,
		m.hibernateSeconds, m.refusals, m.observed, m.observedBytes, m.held, m.accepted, m.drained, m.dialSeconds, m.limited, m.proxyBytes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: 10 * time.Second})
}

// Transition counts one that ended.
func (m *Metrics) Transition(t *shimv1.Transition) {
	seconds := t.GetTotalMs() / 1000
	switch t.GetKind() {
	case "wake":
		m.wakes.WithLabelValues(t.GetReason(), t.GetOutcome()).Inc()
		m.wakeSeconds.WithLabelValues(t.GetOutcome()).Observe(seconds)
	case "hibernate":
		m.hibernations.WithLabelValues(t.GetOutcome()).Inc()
		if t.GetOutcome() == "slept" {
			m.hibernateSeconds.Observe(seconds)
		}
	}
}

// WakeCallFailed counts a call of Wake without a wake.
func (m *Metrics) WakeCallFailed() { m.wakeCallErrors.Inc() }

// Refused counts a request of the idle policy that did not end in sleep.
func (m *Metrics) Refused(outcome string) { m.refusals.WithLabelValues(outcome).Inc() }

// Observed counts a hibernation that mode observe has only told of, and the memory that it would have freed.
func (m *Metrics) Observed(namespace string, bytes uint64) {
	m.observed.WithLabelValues(namespace).Inc()
	m.observedBytes.WithLabelValues(namespace).Add(float64(bytes))
}

// Held counts a beginning hold.
func (m *Metrics) Held(namespace string) { m.held.WithLabelValues(namespace).Inc() }

// Accepted counts a connection taken from a backlog.
func (m *Metrics) Accepted() { m.accepted.Inc() }

// Limited counts connections that wait because of a limit.
func (m *Metrics) Limited() { m.limited.Inc() }

// Drained counts a connection that ended: bytes to the workload and from it, the time to connect, and whether it failed.
func (m *Metrics) Drained(in, out int64, dial time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.drained.WithLabelValues(result).Inc()
	m.dialSeconds.Observe(dial.Seconds())
	m.proxyBytes.WithLabelValues("in").Add(float64(in))
	m.proxyBytes.WithLabelValues("out").Add(float64(out))
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "hibernate_" + name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hibernate_" + name, Help: help}, labels)
}

// histogram has native buckets, and classic ones doubling roughly by half from least for those who scrape text.
func histogram(name, help string, least float64, count int) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: "hibernate_" + name, Help: help,
		Buckets:                         prometheus.ExponentialBuckets(least, 1.6, count),
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}
}
