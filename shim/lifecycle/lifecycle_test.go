package lifecycle

import (
	"errors"
	"strings"
	"testing"
)

// One letter a cell: the first letter of the state that follows, or '-' where the event is illegal.
// Rows are states, columns events, both in the order of their constants.
const containerMatrix = `
rRow S P R E D
created r - - s d
running - p - s -
paused - - r s -
stopped - - - - d
deleted - - - - -
`

const workloadMatrix = `
rRow H A C W w B P L E
awake h - - - - - - w e
hibernating - a s - - - - - e
asleep - - - w - - - - e
waking - - - - a b s - e
blocked - - - w - - - - e
ended - - - - - - - - -
`

var containerLetters = map[string]Container{"c": Created, "r": Running, "p": Paused, "s": Stopped, "d": Deleted}
var workloadLetters = map[string]Workload{"a": Awake, "h": Hibernating, "s": Asleep, "w": Waking, "b": Blocked, "e": Ended}

func TestContainerMatrix(t *testing.T) {
	checkMatrix(t, containerMatrix, int(containerStates), int(containerEvents), func(state, event int) (int, string, error) {
		next, err := Container(state).Next(ContainerEvent(event))
		return int(next), Container(state).String(), err
	}, func(letter string) int { return int(containerLetters[letter]) })
}

func TestWorkloadMatrix(t *testing.T) {
	checkMatrix(t, workloadMatrix, int(workloadStates), int(workloadEvents), func(state, event int) (int, string, error) {
		next, err := Workload(state).Next(WorkloadEvent(event))
		return int(next), Workload(state).String(), err
	}, func(letter string) int { return int(workloadLetters[letter]) })
}

func checkMatrix(t *testing.T, matrix string, states, events int, next func(s, e int) (int, string, error), state func(string) int) {
	t.Helper()
	rows := strings.Split(strings.TrimSpace(matrix), "\n")[1:]
	if len(rows) != states {
		t.Fatalf("the matrix has %d rows, the table %d states", len(rows), states)
	}
	for s, row := range rows {
		cells := strings.Fields(row)
		if len(cells)-1 != events {
			t.Fatalf("row %q has %d cells, want %d events", row, len(cells)-1, events)
		}
		for e, cell := range cells[1:] {
			got, name, err := next(s, e)
			if name != cells[0] {
				t.Fatalf("row %d is %q, the state's name is %q", s, cells[0], name)
			}
			var illegal *IllegalError
			switch {
			case cell == "-" && !errors.As(err, &illegal):
				t.Errorf("%s: event %d gives state %d and %v, want an IllegalError", name, e, got, err)
			case cell == "-" && got != s:
				t.Errorf("%s: an illegal event %d moved to %d", name, e, got)
			case cell != "-" && (err != nil || got != state(cell)):
				t.Errorf("%s: event %d gives state %d and %v, want %q", name, e, got, err, cell)
			}
		}
	}
}

func TestNamesOfUnknownValues(t *testing.T) {
	if got := Workload(99).String(); got != "unknown" {
		t.Errorf("Workload(99) is %q", got)
	}
}
