package manager

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// groupLabels are the annotations that name a container's group, the first that is there counting.
var groupLabels = []string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}

// groupOf returns the name under which containers share a daemon: their pod's, or the container's own.
func groupOf(bundle, id string) (string, error) {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return "", fmt.Errorf("find the container's group: %w", err)
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return "", fmt.Errorf("find the container's group: config.json: %w", err)
	}
	for _, label := range groupLabels {
		if group := spec.Annotations[label]; group != "" {
			return group, nil
		}
	}
	return id, nil
}
