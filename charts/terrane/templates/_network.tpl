{{/* Rules that several NetworkPolicies share. */}}
{{- define "terrane.runnerSelector" -}}
matchLabels: {app.kubernetes.io/managed-by: terrane}
matchExpressions: [{key: terrane.dev/run-uid, operator: Exists}]
{{- end -}}

{{- define "terrane.egress.dns" -}}
- ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
{{- end -}}

{{- define "terrane.egress.api" -}}
{{- with .Values.networkPolicies.apiServer -}}
- ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "terrane.egress.datastore" -}}
- ports: [{protocol: TCP, port: 8443}]
  to:
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: {{ include "terrane.namespace" . }}}
      podSelector:
        matchLabels:
          {{- include "terrane.selector" (dict "root" . "component" "datastore") | nindent 10 }}
{{- end -}}

{{/* Ports of any address but those where clouds hand out credentials: a list of ports. */}}
{{- define "terrane.egress.anywhere" -}}
- ports:
    {{- range . }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
    - ipBlock: {cidr: "::/0", except: ["fe80::/10", "fd00:ec2::254/128"]}
{{- end -}}
