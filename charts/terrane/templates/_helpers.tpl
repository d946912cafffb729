{{/*
Names are fixed: the datastore knows its callers by namespace and ServiceAccount (crates/api/src/lib.rs), and of CRDs and
ClusterRoles a cluster has one set.
*/}}
{{- define "terrane.namespace" -}}
{{- if ne .Release.Namespace "terrane-system" -}}
{{- fail (printf "Terrane looks for itself in the namespace terrane-system and cannot work in %s: add --namespace terrane-system --create-namespace" .Release.Namespace) -}}
{{- end -}}
terrane-system
{{- end -}}

{{/* Of every object: dict root, and component where it belongs to one. */}}
{{- define "terrane.labels" -}}
{{ include "terrane.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: terrane
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "terrane.selector" -}}
app.kubernetes.io/name: terrane
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* dict root, image */}}
{{- define "terrane.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Whether images are built by kaniko, whose pods have a namespace of their own; "true", or empty. */}}
{{- define "terrane.kaniko" -}}
{{- if and .Values.builds.enabled (eq .Values.builds.builder "kaniko") -}}
{{- if not .Values.clusterWide -}}
{{- fail "builds.builder: kaniko needs a namespace of its own, which belongs to the cluster; without clusterWide set it to runner" -}}
{{- end -}}
{{- if not .Values.admissionPolicies.enabled -}}
{{- fail "builds.builder: kaniko needs admissionPolicies.enabled: its pods say by their labels whose they are, and the policy lets nobody else set these; or set it to runner" -}}
{{- end -}}
{{- $namespace := .Values.builds.namespace -}}
{{- if eq $namespace (include "terrane.namespace" .) -}}
{{- fail (printf "builds.namespace: %s is Terrane's own; name one that nothing else is in" $namespace) -}}
{{- end -}}
{{- range .Values.tenants -}}
{{- if eq .namespace $namespace -}}
{{- fail (printf "builds.namespace: %s is a tenant's, and kaniko's pods are root; name one that nothing else is in" $namespace) -}}
{{- end -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{- define "terrane.datastoreUrl" -}}
https://terrane-datastore.{{ include "terrane.namespace" . }}.svc
{{- end -}}

{{/* Where the certificate of a part is: dict root, component. */}}
{{- define "terrane.tlsSecret" -}}
{{- (index .root.Values .component).tls.existingSecret | default (printf "terrane-%s-tls" .component) -}}
{{- end -}}

{{/* The names that a part's certificate is for, as JSON: dict root, component. */}}
{{- define "terrane.certificateNames" -}}
{{- $namespace := include "terrane.namespace" .root -}}
{{- $name := printf "terrane-%s" .component -}}
{{- $names := list
      (printf "%s.%s.svc" $name $namespace)
      (printf "%s.%s.svc.cluster.local" $name $namespace)
      (printf "%s.%s" $name $namespace)
      $name -}}
{{- if eq .component "server" -}}
{{- $names = concat $names (list "localhost") .root.Values.server.tls.extraNames -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{- define "terrane.publicUrl" -}}
{{- with .Values.server -}}
{{- if .publicUrl -}}
{{ .publicUrl }}
{{- else if .ingress.enabled -}}
https://{{ required "server.ingress.host: say under which name people reach the server" .ingress.host }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether people see the certificate that Helm makes, and must be told its authority. */}}
{{- define "terrane.announcesOwnAuthority" -}}
{{- with .Values.server -}}
{{- if and (not .publicCA) (not .ingress.enabled) (not .behindTls) (not .tls.existingSecret) (not $.Values.tls.certManager.enabled) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the pods of each part have in common: dict root, component. */}}
{{- define "terrane.podMetadata" -}}
{{- $values := index .root.Values .component -}}
labels:
  {{- include "terrane.labels" . | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Names of Secrets that images are pulled with, with commas between them. */}}
{{- define "terrane.pullSecretNames" -}}
{{- $names := .Values.imagePullSecrets -}}
{{- if .Values.containerRegistrySecret }}{{ $names = append $names "terrane-registry" }}{{ end -}}
{{- join "," $names -}}
{{- end -}}

{{/* Begins with a new line, or is empty. */}}
{{- define "terrane.imagePullSecrets" -}}
{{- with include "terrane.pullSecretNames" . | splitList "," | compact }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "terrane.podSpec" -}}
{{- $values := index .root.Values .component -}}
serviceAccountName: terrane-{{ .component }}
automountServiceAccountToken: true
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- include "terrane.imagePullSecrets" .root }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if $values.topologySpreadConstraints }}
  {{- toYaml $values.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "terrane.selector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end -}}

{{- define "terrane.container" -}}
{{- $values := index .root.Values .component -}}
name: {{ .component }}
image: {{ include "terrane.image" (dict "root" .root "image" .root.Values.image) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources:
  {{- toYaml $values.resources | nindent 2 }}
env:
  - {name: TERRANE_LOG_LEVEL, value: {{ .root.Values.log.level }}}
  - {name: TERRANE_LOG_FORMAT, value: {{ .root.Values.log.format }}}
{{- end -}}

{{/* dict scheme. The checks of /readyz give each thing that they ask 3 s. */}}
{{- define "terrane.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ .scheme }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ .scheme }}}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ .scheme }}}
  periodSeconds: 5
  timeoutSeconds: 8
  failureThreshold: 3
{{- end -}}

{{/* Without clusterWide: the namespaces that each part looks after. */}}
{{- define "terrane.area" -}}
{{- if not .Values.clusterWide -}}
{{- $names := list -}}
{{- range .Values.tenants }}{{ $names = append $names .namespace }}{{ end -}}
- --namespaces={{ join "," $names }}
{{- end -}}
{{- end -}}

{{/* The token that a part shows to the datastore, and the authority that it believes about it. */}}
{{- define "terrane.datastoreArguments" -}}
- --datastore-url={{ include "terrane.datastoreUrl" . }}
- --datastore-ca=/etc/terrane/datastore/ca.crt
- --token-file=/var/run/terrane/token
{{- end -}}

{{- define "terrane.datastoreMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: datastore-token, mountPath: /var/run/terrane, readOnly: true}
- {name: datastore-ca, mountPath: /etc/terrane/datastore, readOnly: true}
{{- end -}}

{{- define "terrane.datastoreVolumes" -}}
- name: tmp
  emptyDir: {}
- name: datastore-token
  projected:
    sources:
      - serviceAccountToken: {audience: terrane-datastore, expirationSeconds: 3600, path: token}
- name: datastore-ca
  secret:
    secretName: {{ include "terrane.tlsSecret" (dict "root" . "component" "datastore") }}
    # Without the key, which is the datastore's alone.
    items: [{key: ca.crt, path: ca.crt}]
{{- end -}}

{{- define "terrane.backendsName" -}}
terrane-backends-{{ .Values.controller.backends | toJson | sha256sum | trunc 8 }}
{{- end -}}
