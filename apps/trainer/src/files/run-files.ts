// The names of the files of a run.

import type { RunConfig } from '../run-config.js';

/** The names of what a run writes under --out; what they say of it is told by run-state.ts. */
export const RUN_FILES = {
  config: 'config.yaml',
  metrics: 'metrics.jsonl',
  events: 'events.jsonl',
  summary: 'summary.json',
  chart: 'loss.svg',
  report: 'report.html',
  model: 'model',
  adapter: 'adapter',
} as const;

/** The name of what a run trains. */
export function resultOf({ lora }: Pick<RunConfig, 'lora'>): string {
  return lora === undefined ? RUN_FILES.model : RUN_FILES.adapter;
}
