package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/print"
	"github.com/berth-gpu/berth/internal/core/quota"
)

func newQuotaCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "Show the quotas of GPUs: used, hard, and who uses them",
		Long: `Show each name of GPUs that a ResourceQuota limits, how much of it is used, and the pods and
ResourceClaims that use it. GPUQUOTA is the GPUQuota that the ResourceQuota belongs to.

A ResourceQuota counts each name by itself: whole GPUs through the device plugin and through
claims are two names, and each may be used up to its limit. A GPUQuota also limits the names of
devices that may come; -o wide shows those too. It counts pods from their creation
until they have ended, also those that wait for a GPU. A name that the API server never counts
limits nothing; the command shows the name to write instead. A quota with scopes counts only some
pods; which ones is not evaluated, so none are named.`,
		Example: `  berth quota
  berth quota -n team-a
  berth quota -o json | jq -r '.items[] | select(.writeInstead != null) | .namespace'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := from.checkChoice(); err != nil {
				return err
			}
			api, noAPI := from.api()
			if api == nil {
				return &hintError{fmt.Errorf("quota: no API server: %s", noAPI), "fix: " + from.connection.Fix()}
			}
			read, err := readQuotas(cmd.Context(), api.Client, from.connection.Chosen())
			if err != nil {
				return apiError(fmt.Errorf("quota: %w", err), "")
			}
			report := read.report()
			rows := print.Of(report.Items, func(u *v1alpha1.QuotaUse) string { return "resourcequota/" + u.Quota })
			return out.Print(deps.Out, report, rows, func(w io.Writer) error { return quotaTable(w, report, &out.Flags) })
		},
	}
	from.bindKube(cmd.Flags())
	from.bindNamespaces(cmd.Flags(), "only this namespace")
	out.AddTo(cmd.Flags(), print.Offer{List: "items", Field: "name", Named: true, Wide: true})
	return cmd
}

// quotaObjects are the objects that berth quota reads.
type quotaObjects struct {
	quotas []corev1.ResourceQuota
	pods   []corev1.Pod
	claims []resourceapi.ResourceClaim
	// resources are the names under which agents advertise devices.
	resources map[string]bool
}

// readQuotas reads the quotas of a namespace, or of all, with what they count.
func readQuotas(ctx context.Context, client dynamic.Interface, namespace string) (objects quotaObjects, err error) {
	core := corev1.SchemeGroupVersion
	if objects.quotas, err = listIn[corev1.ResourceQuota](ctx, client, core.WithResource("resourcequotas"), namespace); err != nil {
		return objects, err
	}
	if objects.pods, err = listIn[corev1.Pod](ctx, client, core.WithResource("pods"), namespace); err != nil {
		return objects, err
	}
	if objects.claims, err = listIn[resourceapi.ResourceClaim](ctx, client, resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), namespace); err != nil && !apierrors.IsNotFound(err) {
		return objects, err // Kubernetes before 1.34 does not serve this version.
	}
	nodes, err := listOf[v1alpha1.GPUNode](ctx, client, v1alpha1.GPUNodes())
	if err != nil {
		return objects, err
	}
	objects.resources = map[string]bool{}
	for i := range nodes {
		for j := range nodes[i].Status.Devices {
			d := &nodes[i].Status.Devices[j]
			if d.Offered != nil {
				objects.resources[d.Offered.Resource] = true
			}
			for k := range d.MIGDevices {
				if o := d.MIGDevices[k].Offered; o != nil {
					objects.resources[o.Resource] = true
				}
			}
		}
	}
	return objects, nil
}

// The forms in which a ResourceQuota counts devices of a DeviceClass: those of claims, and those that extended resources get by DRA.
const (
	claimsOfClass   = ".deviceclass.resource.k8s.io/devices"
	implicitOfClass = "requests.deviceclass.resource.kubernetes.io/"
)

// idle reports whether a name of a GPUQuota is limited for devices that may come only: nothing uses it, and no node has had devices.
func idle(q *corev1.ResourceQuota, name string) bool {
	noted, ok := q.Annotations[v1alpha1.AnnotationQuotaNames]
	counted, known := quota.Known(name)
	used := q.Status.Used[corev1.ResourceName(name)]
	if !ok || !known || !used.IsZero() {
		return false
	}
	for part := range strings.SplitSeq(noted, ",") {
		if key, _, _ := strings.Cut(part, "="); key == counted.Keys[0] {
			return false
		}
	}
	return true
}

// report returns the names of devices that the quotas limit.
func (o *quotaObjects) report() *v1alpha1.QuotaReport {
	report := &v1alpha1.QuotaReport{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindQuotaReport), Items: []v1alpha1.QuotaUse{}}
	for i := range o.quotas {
		q := &o.quotas[i]
		of := q.Annotations[v1alpha1.Group+"/gpu-quota"]
		for name, hard := range q.Spec.Hard {
			use := v1alpha1.QuotaUse{
				Namespace: q.Namespace, Quota: q.Name, GPUQuota: of, Name: string(name), Hard: hard.String(),
				Scoped: len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil, Idle: of != "" && idle(q, string(name)),
			}
			used := q.Status.Used[name]
			use.Used = used.String()
			resource, counted := strings.CutPrefix(string(name), "requests.")
			class, ofClass := strings.CutSuffix(string(name), claimsOfClass)
			switch {
			case ofClass:
				use.Holders = o.claimsOf(q.Namespace, class)
			case strings.HasPrefix(string(name), implicitOfClass):
				// The claims that stand in for extended resources are the pods' own.
			case counted && (o.resources[resource] || of != ""):
				use.Holders = o.podsWith(q.Namespace, resource)
			case o.resources[strings.TrimPrefix(string(name), "limits.")]:
				use.Used, use.WriteInstead = "", "requests."+strings.TrimPrefix(string(name), "limits.")
			default:
				continue
			}
			if use.Scoped {
				use.Holders = nil // Which pods match its scopes is not evaluated.
			}
			report.Items = append(report.Items, use)
		}
	}
	slices.SortFunc(report.Items, func(a, b v1alpha1.QuotaUse) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Quota, b.Quota), cmp.Compare(a.Name, b.Name))
	})
	return report
}

// podsWith returns the pods of a namespace that request a resource and have not ended.
func (o *quotaObjects) podsWith(namespace, resource string) []v1alpha1.QuotaHolder {
	var holders []v1alpha1.QuotaHolder
	for i := range o.pods {
		pod := &o.pods[i]
		if pod.Namespace != namespace || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		if quantity := requests[corev1.ResourceName(resource)]; quantity.Value() > 0 {
			holders = append(holders, v1alpha1.QuotaHolder{Kind: "Pod", Name: pod.Name, Count: quantity.Value()})
		}
	}
	return mostFirst(holders)
}

// claimsOf returns the ResourceClaims of a namespace that request devices of a class.
func (o *quotaObjects) claimsOf(namespace, class string) []v1alpha1.QuotaHolder {
	var holders []v1alpha1.QuotaHolder
	for i := range o.claims {
		claim := &o.claims[i]
		if claim.Namespace != namespace {
			continue
		}
		count := int64(0)
		for _, request := range claim.Spec.Devices.Requests {
			if exactly := request.Exactly; exactly != nil && exactly.DeviceClassName == class {
				count += devicesOf(exactly.AllocationMode, exactly.Count)
			}
			// Of alternatives the quota counts the largest.
			most := int64(0)
			for _, alternative := range request.FirstAvailable {
				if alternative.DeviceClassName == class {
					most = max(most, devicesOf(alternative.AllocationMode, alternative.Count))
				}
			}
			count += most
		}
		if count > 0 {
			holders = append(holders, v1alpha1.QuotaHolder{Kind: "ResourceClaim", Name: claim.Name, Count: count})
		}
	}
	return mostFirst(holders)
}

// devicesOf returns as how many devices a quota counts a request: of all devices, as the most that a claim can have, and of a mode that
// Kubernetes does not know as none (pkg/quota/v1/evaluator/core/resource_claims.go of Kubernetes 1.37).
func devicesOf(mode resourceapi.DeviceAllocationMode, count int64) int64 {
	switch mode {
	case resourceapi.DeviceAllocationModeAll:
		return resourceapi.AllocationResultsMaxSize
	case resourceapi.DeviceAllocationModeExactCount, "":
		return max(count, 1)
	}
	return 0
}

func mostFirst(holders []v1alpha1.QuotaHolder) []v1alpha1.QuotaHolder {
	slices.SortFunc(holders, func(a, b v1alpha1.QuotaHolder) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	return holders
}

// mostHolders is how many holders a row of the table names, unless it is wide.
const mostHolders = 3

func quotaTable(w io.Writer, report *v1alpha1.QuotaReport, view *print.Flags) error {
	if len(report.Items) == 0 && !view.RowsOnly() {
		_, err := fmt.Fprintln(w, "no ResourceQuota limits GPUs; docs/operate.md has GPUQuota")
		return err
	}
	var rows [][]string
	hidden := 0
	for i := range report.Items {
		u := &report.Items[i]
		if u.Idle && len(u.Holders) == 0 && !view.IsWide() {
			hidden++
			continue
		}
		var by []string
		named := len(u.Holders)
		if !view.IsWide() {
			named = min(named, mostHolders)
		}
		for _, h := range u.Holders[:named] {
			by = append(by, fmt.Sprintf("%s (%d)", h.Name, h.Count))
		}
		if more := len(u.Holders) - named; more > 0 {
			by = append(by, fmt.Sprintf("%d more", more))
		}
		used := u.Used
		switch {
		case u.WriteInstead != "":
			used, by = "not counted", []string{"write " + u.WriteInstead}
		case u.Scoped:
			by = []string{"not named: the quota has scopes"}
		}
		rows = append(rows, []string{u.Namespace, u.Quota, cmp.Or(u.GPUQuota, "-"), u.Name, used, u.Hard, cmp.Or(strings.Join(by, ", "), "-")})
	}
	err := view.Table(w, []string{"NAMESPACE", "QUOTA", "GPUQUOTA", "NAME", "USED", "HARD", "USED BY"}, rows)
	if hidden > 0 && err == nil && !view.RowsOnly() {
		_, err = fmt.Fprintf(w, "%d more names are limited, which nothing uses and no node has devices under; -o wide shows them\n", hidden)
	}
	return err
}
