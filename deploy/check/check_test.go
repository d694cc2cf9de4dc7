package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const manifests = "../kubernetes"

// types are the kinds that the manifests may use.
var types = map[string]func() any{
	"v1/Service":                                   func() any { return &corev1.Service{} },
	"v1/ConfigMap":                                 func() any { return &corev1.ConfigMap{} },
	"v1/Secret":                                    func() any { return &corev1.Secret{} },
	"apps/v1/StatefulSet":                          func() any { return &appsv1.StatefulSet{} },
	"apps/v1/Deployment":                           func() any { return &appsv1.Deployment{} },
	"policy/v1/PodDisruptionBudget":                func() any { return &policyv1.PodDisruptionBudget{} },
	"autoscaling/v2/HorizontalPodAutoscaler":       func() any { return &autoscalingv2.HorizontalPodAutoscaler{} },
	"networking.k8s.io/v1/NetworkPolicy":           func() any { return &networkingv1.NetworkPolicy{} },
	"gateway.networking.k8s.io/v1/HTTPRoute":       func() any { return &gatewayv1.HTTPRoute{} },
	"inference.networking.k8s.io/v1/InferencePool": func() any { return &inferencePool{} },
	"ray.io/v1/RayService":                         func() any { return &rayService{} },
}

// inferencePool is what a client may write of the Gateway API Inference Extension's InferencePool, v1. Its Go
// module brings a whole scheduler along, so the few fields are here.
type inferencePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []struct {
			Number int32 `json:"number"`
		} `json:"targetPorts"`
		AppProtocol       string `json:"appProtocol"`
		EndpointPickerRef *struct {
			Group *string `json:"group"`
			Kind  string  `json:"kind"`
			Name  string  `json:"name"`
			Port  *struct {
				Number int32 `json:"number"`
			} `json:"port"`
			FailureMode string `json:"failureMode"`
		} `json:"endpointPickerRef"`
	} `json:"spec"`
}

// rayService is what the example uses of KubeRay's RayService.
type rayService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ServeConfigV2    string `json:"serveConfigV2"`
		RayClusterConfig struct {
			HeadGroupSpec struct {
				RayStartParams map[string]string      `json:"rayStartParams"`
				Template       corev1.PodTemplateSpec `json:"template"`
			} `json:"headGroupSpec"`
			WorkerGroupSpecs []struct {
				GroupName      string                 `json:"groupName"`
				Replicas       *int32                 `json:"replicas"`
				MinReplicas    *int32                 `json:"minReplicas"`
				MaxReplicas    *int32                 `json:"maxReplicas"`
				RayStartParams map[string]string      `json:"rayStartParams"`
				Template       corev1.PodTemplateSpec `json:"template"`
			} `json:"workerGroupSpecs"`
		} `json:"rayClusterConfig"`
	} `json:"spec"`
}

// serveConfig is the configuration of Ray Serve in it.
type serveConfig struct {
	Applications []struct {
		Name        string `json:"name"`
		RoutePrefix string `json:"route_prefix"`
		ImportPath  string `json:"import_path"`
		Args        struct {
			LLMConfigs []struct {
				ModelLoadingConfig struct {
					ModelID     string `json:"model_id"`
					ModelSource string `json:"model_source"`
				} `json:"model_loading_config"`
				DeploymentConfig struct {
					AutoscalingConfig struct {
						MinReplicas int `json:"min_replicas"`
						MaxReplicas int `json:"max_replicas"`
					} `json:"autoscaling_config"`
				} `json:"deployment_config"`
				EngineKwargs struct {
					TensorParallelSize  int  `json:"tensor_parallel_size"`
					EnablePrefixCaching bool `json:"enable_prefix_caching"`
					SpeculativeConfig   struct {
						Method               string `json:"method"`
						Model                string `json:"model"`
						NumSpeculativeTokens int    `json:"num_speculative_tokens"`
					} `json:"speculative_config"`
				} `json:"engine_kwargs"`
			} `json:"llm_configs"`
		} `json:"args"`
	} `json:"applications"`
}

// build is what kubectl apply -k would send, decoded.
func build(dir string) ([]any, error) {
	res, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	var out []any
	for _, r := range res.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		obj, err := decode(text)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.GetKind(), r.GetName(), err)
		}
		out = append(out, obj)
	}
	return out, nil
}

// decode reads an object of a known kind and refuses fields that it does not have.
func decode(text []byte) (any, error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return nil, err
	}
	make, ok := types[kind.APIVersion+"/"+kind.Kind]
	if !ok {
		return nil, fmt.Errorf("%s/%s is not a kind that the manifests use", kind.APIVersion, kind.Kind)
	}
	obj := make()
	return obj, strict(text, obj)
}

// strict decodes as Kubernetes does: names are what they are, upper and lower case included.
func strict(text []byte, into any) error {
	b, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	unknown, err := json.UnmarshalStrict(b, into, json.DisallowUnknownFields, json.DisallowDuplicateFields)
	return errors.Join(append(unknown, err)...)
}

// pods are the templates of pods with their owner's name, and the labels of each.
func pods(objects []any) map[string]*corev1.PodTemplateSpec {
	out := map[string]*corev1.PodTemplateSpec{}
	for _, o := range objects {
		switch x := o.(type) {
		case *appsv1.StatefulSet:
			out[x.Name] = &x.Spec.Template
		case *appsv1.Deployment:
			out[x.Name] = &x.Spec.Template
		}
	}
	return out
}

func overlays(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(manifests + "/*/kustomization.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	var dirs []string
	for _, f := range files {
		dirs = append(dirs, filepath.Dir(f))
	}
	return dirs
}

func TestManifests(t *testing.T) {
	for _, dir := range overlays(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			objects, err := build(dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(objects) == 0 {
				t.Fatal("it builds nothing")
			}
			for _, problem := range check(objects) {
				t.Error(problem)
			}
		})
	}
}

// check looks at what types cannot say: that pods are shut in, say when they are ready and have time to stop, and that
// objects that speak of others find them.
func check(objects []any) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	all := pods(objects)
	for name, p := range all {
		checkPod(func(format string, args ...any) { bad(name+": "+format, args...) }, p)
	}
	// selects reports whether a selector takes the pods of exactly one owner, and has the port.
	selects := func(what string, match map[string]string, ports ...string) {
		found := 0
		for _, p := range all {
			if len(match) > 0 && labels.SelectorFromSet(match).Matches(labels.Set(p.Labels)) {
				found++
				for _, port := range ports {
					if !slices.ContainsFunc(p.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool {
						return c.Name == port || fmt.Sprint(c.ContainerPort) == port
					}) {
						bad("%s: its pods have no port %s", what, port)
					}
				}
			}
		}
		if found != 1 {
			bad("%s: it selects the pods of %d owners", what, found)
		}
	}
	services := map[string]bool{}
	for _, o := range objects {
		switch x := o.(type) {
		case *corev1.Service:
			services[x.Name] = true
			for _, p := range x.Spec.Ports {
				selects("service "+x.Name, x.Spec.Selector, p.TargetPort.String())
			}
		case *policyv1.PodDisruptionBudget:
			if x.Spec.Selector != nil {
				selects("disruption budget "+x.Name, x.Spec.Selector.MatchLabels)
			} else {
				bad("disruption budget %s: it selects nothing", x.Name)
			}
			if (x.Spec.MaxUnavailable == nil) == (x.Spec.MinAvailable == nil) {
				bad("disruption budget %s: want one of maxUnavailable and minAvailable", x.Name)
			}
		case *networkingv1.NetworkPolicy:
			for _, in := range x.Spec.Ingress {
				for _, p := range in.Ports {
					selects("network policy "+x.Name, x.Spec.PodSelector.MatchLabels, p.Port.String())
				}
			}
		case *inferencePool:
			ports := x.Spec.TargetPorts
			if len(ports) < 1 || len(ports) > 8 {
				bad("pool %s: it has %d ports", x.Name, len(ports))
			}
			for _, p := range ports {
				selects("pool "+x.Name, x.Spec.Selector.MatchLabels, fmt.Sprint(p.Number))
			}
			ref := x.Spec.EndpointPickerRef
			if ref == nil || ref.Name == "" || ref.Port == nil || ref.Port.Number < 1 || ref.Port.Number > 65535 {
				bad("pool %s: a service that picks endpoints needs a name and a port: %+v", x.Name, ref)
			} else if m := ref.FailureMode; m != "" && m != "FailOpen" && m != "FailClose" {
				bad("pool %s: there is no failure mode %s", x.Name, m)
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			if to := x.Spec.ScaleTargetRef; all[to.Name] == nil || to.APIVersion != "apps/v1" {
				bad("autoscaler %s: there is no %s %s", x.Name, to.Kind, to.Name)
			}
			if len(x.Spec.Metrics) == 0 || x.Spec.MinReplicas == nil || *x.Spec.MinReplicas > x.Spec.MaxReplicas {
				bad("autoscaler %s: %+v", x.Name, x.Spec)
			}
		case *appsv1.StatefulSet:
			if !labels.SelectorFromSet(x.Spec.Selector.MatchLabels).Matches(labels.Set(x.Spec.Template.Labels)) {
				bad("%s: it does not select its own pods", x.Name)
			}
			for _, v := range x.Spec.Template.Spec.Containers[0].VolumeMounts {
				if !slices.ContainsFunc(x.Spec.VolumeClaimTemplates, func(c corev1.PersistentVolumeClaim) bool {
					return c.Name == v.Name
				}) {
					bad("%s: there is no volume %s", x.Name, v.Name)
				}
			}
		case *rayService:
			problems = append(problems, checkRay(x)...)
		}
	}
	for _, o := range objects {
		if s, ok := o.(*appsv1.StatefulSet); ok && !services[s.Spec.ServiceName] {
			bad("%s: there is no service %s", s.Name, s.Spec.ServiceName)
		}
	}
	return problems
}

// checkPod looks at one kind of pod.
func checkPod(bad func(format string, args ...any), p *corev1.PodTemplateSpec) {
	s := &p.Spec
	if len(s.Containers) != 1 {
		bad("it has %d containers", len(s.Containers))
		return
	}
	c := &s.Containers[0]
	sc, ps := c.SecurityContext, s.SecurityContext
	if ps == nil || sc == nil || ps.RunAsNonRoot == nil || !*ps.RunAsNonRoot || ps.RunAsUser == nil ||
		*ps.RunAsUser == 0 || ps.SeccompProfile == nil {
		bad("it may run as root")
		return
	}
	if sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem || sc.AllowPrivilegeEscalation == nil ||
		*sc.AllowPrivilegeEscalation || sc.Capabilities == nil || !slices.Contains(sc.Capabilities.Drop, "ALL") {
		bad("its container may do too much: %+v", sc)
	}
	for what, probe := range map[string]*corev1.Probe{
		"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe,
	} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/health" || probe.HTTPGet.Port.String() != "http" {
			bad("its %s probe does not ask /health", what)
		}
	}
	var drain time.Duration
	for _, e := range c.Env {
		if e.Name == "STROBE_SHUTDOWN_TIMEOUT" {
			drain, _ = time.ParseDuration(e.Value)
		}
	}
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil || drain == 0 ||
		s.TerminationGracePeriodSeconds == nil {
		bad("it does not let streams finish")
	} else if grace := time.Duration(*s.TerminationGracePeriodSeconds) * time.Second; grace <=
		drain+time.Duration(c.Lifecycle.PreStop.Sleep.Seconds)*time.Second {
		bad("it is killed after %v, before its streams had %v to finish", grace, drain)
	}
	if gpu, ok := c.Resources.Requests["nvidia.com/gpu"]; ok {
		if limit := c.Resources.Limits["nvidia.com/gpu"]; limit.Cmp(gpu) != 0 || gpu.IsZero() {
			bad("GPUs cannot be shared out: %v requested, %v allowed", gpu.String(), limit.String())
		}
	}
	if c.Resources.Requests.Memory().IsZero() {
		bad("it requests no memory")
	}
}

func checkRay(x *rayService) (problems []string) {
	var c serveConfig
	if err := strict([]byte(x.Spec.ServeConfigV2), &c); err != nil {
		return []string{fmt.Sprintf("Ray service %s: %v", x.Name, err)}
	}
	for _, a := range c.Applications {
		for _, l := range a.Args.LLMConfigs {
			spec := l.EngineKwargs.SpeculativeConfig
			if spec.Method != "dflash" || spec.Model == "" || spec.NumSpeculativeTokens < 1 ||
				l.ModelLoadingConfig.ModelID == "" {
				problems = append(problems, fmt.Sprintf("Ray service %s: %+v", x.Name, l))
			}
		}
		if a.ImportPath != "ray.serve.llm:build_openai_app" || len(a.Args.LLMConfigs) == 0 {
			problems = append(problems, fmt.Sprintf("Ray service %s: %+v", x.Name, a))
		}
	}
	if len(c.Applications) == 0 || len(x.Spec.RayClusterConfig.WorkerGroupSpecs) == 0 {
		problems = append(problems, "Ray service "+x.Name+": it serves nothing")
	}
	return problems
}

// TestWhatOverlaysAreFor: each has what its name says.
func TestWhatOverlaysAreFor(t *testing.T) {
	built := map[string][]any{}
	for _, dir := range overlays(t) {
		objects, err := build(dir)
		if err != nil {
			t.Fatal(err)
		}
		built[filepath.Base(dir)] = objects
	}
	container := func(overlay, owner string) *corev1.Container {
		p := pods(built[overlay])[owner]
		if p == nil {
			t.Fatalf("%s has no %s", overlay, owner)
		}
		return &p.Spec.Containers[0]
	}
	if c := container("base", "strobe"); c.Image != "strobe:latest" || len(c.Resources.Limits) != 1 {
		t.Errorf("base runs %s with %v", c.Image, c.Resources.Limits)
	}
	for _, overlay := range []string{"gpu", "gateway", "front"} {
		c := container(overlay, "strobe")
		if n := c.Resources.Limits["nvidia.com/gpu"]; c.Image != "strobe:gpu" || n.Value() != 1 {
			t.Errorf("%s runs %s with %v", overlay, c.Image, c.Resources.Limits)
		}
	}
	if c := container("gateway", "strobe"); len(c.EnvFrom) != 1 || c.EnvFrom[0].ConfigMapRef == nil ||
		!slices.Contains(c.Args, "--allow-host=llm.example.com") {
		t.Errorf("behind a gateway servers want keys or go by no name: %v %v", c.EnvFrom, c.Args)
	}
	for _, o := range built["gateway"] {
		if r, ok := o.(*gatewayv1.HTTPRoute); ok {
			ref := r.Spec.Rules[0].BackendRefs[0]
			if *ref.Kind != "InferencePool" || *ref.Group != "inference.networking.k8s.io" || ref.Name != "strobe" {
				t.Errorf("the route leads to %+v", ref)
			}
		}
	}
	front := strings.Join(container("front", "strobe-front").Args, " ")
	for _, want := range []string{"small=http://strobe-0.strobe-pods:8080", "http://large-serve-svc:8000#qwen3.5-27b"} {
		if !strings.Contains(front, want) {
			t.Errorf("the front server does not ask %s: %s", want, front)
		}
	}
}

// TestMistakesAreFound: the checks are worth something.
func TestMistakesAreFound(t *testing.T) {
	for file, edits := range map[string][][2]string{
		"base/statefulset.yaml": {
			{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"},
			{"readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"},
			{"runAsUser: 65532", "runAsUser: 0"},
			{"path: /health", "path: /healthz"},
			{"terminationGracePeriodSeconds: 330", "terminationGracePeriodSeconds: 30"},
			{"containerPort: 8080", "containerPort: http"},
			{"memory: 8Gi", "memory: 8 gigabytes"},
			{"serviceName: strobe-pods", "serviceName: strobe-pod"},
			{"- name: cache\n              mountPath", "- name: caches\n              mountPath"},
		},
		"base/service.yaml":    {{"targetPort: http", "targetPort: https"}, {"clusterIP: None", "clusterIPs: None"}},
		"base/autoscaler.yaml": {{"name: strobe\n  minReplicas", "name: strob\n  minReplicas"}, {"averageValue", "avgValue"}},
		"base/disruption.yaml": {{"maxUnavailable: 1", "minUnavailable: 1"}},
		"gateway/pool.yaml": {{"name: strobe\n  targetPorts", "name: other\n  targetPorts"}, {"number: 8080", "number: 80"},
			{"endpointPickerRef", "extensionRef"}, {"FailOpen", "Open"}, {"    port:\n      number: 9002\n", ""}},
		"ray/service.yaml": {{"method: dflash", "methods: dflash"}, {"minReplicas: 1", "minReplica: 1"}},
	} {
		for _, edit := range edits {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(manifests)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, file)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(b), edit[0], edit[1], 1)
			if changed == string(b) {
				t.Errorf("%s: there is no %q", file, edit[0])
			}
			if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
				t.Fatal(err)
			}
			objects, err := build(filepath.Dir(path))
			if err == nil && len(check(objects)) == 0 {
				t.Errorf("%s: nobody noticed that %q became %q", file, edit[0], edit[1])
			}
		}
	}
}

// TestImage: the images are built as the manifests need them.
func TestImage(t *testing.T) {
	b, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages := regexp.MustCompile(`(?m)^FROM .*$`).Split(string(b), -1)
	heads := regexp.MustCompile(`(?m)^FROM .*$`).FindAllString(string(b), -1)
	final := map[string]string{}
	for i, head := range heads {
		if strings.HasSuffix(head, " AS gpu") || head == "FROM scratch AS cpu" {
			final[head] = stages[i+1]
		}
		// Installing needs root; what is run is another user again.
		if strings.HasPrefix(head, "FROM gpu ") && strings.Count(stages[i+1], "USER root") > 0 &&
			!strings.HasSuffix(strings.TrimSpace(stages[i+1]), "USER 65532:65532") {
			t.Errorf("%s: it runs as root", head)
		}
	}
	if len(final) != 2 || heads[len(heads)-1] != "FROM scratch AS cpu" {
		t.Fatalf("stages %v", heads)
	}
	for head, stage := range final {
		for _, want := range []string{"\nUSER 65532:65532\n", "\nHEALTHCHECK ", "\nVOLUME /cache\n", "STROBE_HOST=0.0.0.0",
			"\nEXPOSE 8080\n", "ca-certificates.crt", "\nENTRYPOINT [\"strobe\"]\n"} {
			if !strings.Contains(stage, want) {
				t.Errorf("%s: no %q", head, want)
			}
		}
		if head == "FROM scratch AS cpu" && strings.Contains(stage, "RUN ") {
			t.Errorf("%s: there is no shell to run anything", head)
		}
	}
	if !strings.Contains(string(b), "go build -tags nogpu ") || !strings.Contains(string(b), "CGO_ENABLED=0") {
		t.Error("the program of the empty image needs a loader")
	}
}
