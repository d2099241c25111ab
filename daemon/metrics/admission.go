package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// admission counts what keeps bursts within the node's bounds, and what watches the daemon itself.
type admission struct {
	waitSeconds    prometheus.Histogram
	wakesRefused   *prometheus.CounterVec
	clientsRefused *prometheus.CounterVec
	roomMade       *prometheus.CounterVec
	shimSilent     prometheus.Counter
	selfProbes     *prometheus.CounterVec
}

func newAdmission(registry *prometheus.Registry) admission {
	a := admission{
		waitSeconds: prometheus.NewHistogram(histogram("wake_wait_seconds",
			"Time that workloads waited for their turn to wake.", 0.01, 20)),
		wakesRefused:   counters("wakes_refused_total", "Wakes that were not admitted, by why.", "reason"),
		clientsRefused: counters("clients_refused_total", "Clients that didn't reach their workload, by how they were told and why.", "answer", "reason"),
		roomMade:       counters("room_hibernations_total", "Hibernations to make room for a wake, by how they ended.", "outcome"),
		shimSilent:     counter("shim_silent_total", "Wakes of which the shim gave no sign for a while."),
		selfProbes:     counters("self_probes_total", "Probes of the daemon's own path, by result.", "result"),
	}
	registry.MustRegister(a.waitSeconds, a.wakesRefused, a.clientsRefused, a.roomMade, a.shimSilent, a.selfProbes)
	return a
}

// WakeWaited takes how long an admitted wake has waited.
func (a admission) WakeWaited(d time.Duration) { a.waitSeconds.Observe(d.Seconds()) }

// WakeRefused counts a wake that was not admitted.
func (a admission) WakeRefused(reason string) { a.wakesRefused.WithLabelValues(reason).Inc() }

// ClientRefused counts a client that didn't reach its workload.
func (a admission) ClientRefused(answer, reason string) {
	a.clientsRefused.WithLabelValues(answer, reason).Inc()
}

// RoomMade counts a hibernation to make room.
func (a admission) RoomMade(outcome string) { a.roomMade.WithLabelValues(outcome).Inc() }

// ShimSilent counts a wake of which the shim gave no sign.
func (a admission) ShimSilent() { a.shimSilent.Inc() }

// SelfProbed counts a probe of the daemon's own path.
func (a admission) SelfProbed(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	a.selfProbes.WithLabelValues(result).Inc()
}
