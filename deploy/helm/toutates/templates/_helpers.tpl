{{/* The name of everything: the release's, with the chart's unless it is in it. */}}
{{- define "toutates.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "toutates.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "toutates.labels" -}}
{{ include "toutates.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "toutates.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "toutates.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "toutates.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "toutates.isRemote" -}}
{{- if regexMatch "^(s3|gs|as|hf|oci|https)://" .Values.models.repository }}yes{{ end -}}
{{- end }}

{{/* Seconds from the end of a pod's life being decided to its last moment, 5 of them to spare. */}}
{{- define "toutates.endSeconds" -}}
{{- with .Values.shutdown -}}
{{- add .preStopSeconds .delaySeconds .graceSeconds 5 -}}
{{- end -}}
{{- end }}

{{/* Microseconds that a request of this release waited, on average of the last minute. */}}
{{- define "toutates.queueQuery" -}}
{{- $pods := printf "namespace=%q,pod=~%q" .Release.Namespace (printf "%s-.*" (include "toutates.name" .)) -}}
sum(rate(nv_inference_queue_duration_us{ {{- $pods -}} }[1m])) / clamp_min(sum(rate(nv_inference_request_success{ {{- $pods -}} }[1m])), 1)
{{- end }}
