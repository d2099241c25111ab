package command

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// none stands for what there is not.
const none = "-"

// humanDuration shows the two largest units at most: 2h5m, 12s, 0.4s.
func humanDuration(d time.Duration) string {
	const day = 24 * time.Hour
	two := func(big, small time.Duration, b, s string) string {
		text := fmt.Sprintf("%d%s", d/big, b)
		if rest := d % big / small; rest > 0 {
			text += fmt.Sprintf("%d%s", rest, s)
		}
		return text
	}
	switch {
	case d < 0:
		return none
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return two(time.Minute, time.Second, "m", "s")
	case d < day:
		return two(time.Hour, time.Minute, "h", "m")
	default:
		return two(day, time.Hour, "d", "h")
	}
}

// humanBytes shows binary units with three digits at least: 512 B, 23.1 MiB, 1.02 GiB.
func humanBytes(n uint64) string {
	if n == 0 {
		return none
	}
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		value /= 1024
		if value < 1024 {
			break
		}
	}
	digits := 0
	if value < 10 {
		digits = 2
	} else if value < 100 {
		digits = 1
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + " " + unit
}

// humanMillis shows a stage of a transition.
func humanMillis(ms float64) string {
	if ms < 10 {
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

// ago is the time since a moment in milliseconds of the epoch, none for the zero moment.
func ago(now time.Time, unixMs int64) string {
	if unixMs == 0 {
		return none
	}
	return humanDuration(max(now.Sub(time.UnixMilli(unixMs)), 0))
}

// shortID cuts the long ids that CRI and nerdctl make, as docker ps does.
func shortID(id string) string {
	if len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
		return id[:12]
	}
	return id
}

func portList(ports []uint32) string {
	var texts []string
	for _, port := range ports {
		texts = append(texts, strconv.Itoa(int(port)))
	}
	return orNone(strings.Join(texts, ","))
}

func orNone(text string) string {
	if text == "" {
		return none
	}
	return text
}
