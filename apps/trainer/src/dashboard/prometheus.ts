// The run as Prometheus reads it: text format 0.0.4, with base units in the names. Counters begin
// at 0 with the command, as those of any restarted process do.

import { MEMORY_TAGS } from '@shardweave/tensor-core';
import type { RunRecord } from '../output/run-records.js';

type Kind = 'gauge' | 'counter';
type Labels = Readonly<Record<string, string | number>>;

interface Family {
  readonly kind: Kind;
  readonly help: string;
  /** The values by their labels, as text. */
  readonly samples: Map<string, number>;
}

const HELP = {
  shardweave_run_info: ['gauge', 'Always 1; what runs is in the labels.'],
  shardweave_planned_steps: ['gauge', 'Optimizer steps that the run will have.'],
  shardweave_step: ['gauge', 'Last optimizer step that has ended, from 1.'],
  shardweave_steps_total: ['counter', 'Optimizer steps that have ended.'],
  shardweave_skipped_steps_total: ['counter', 'Steps that changed nothing, by reason.'],
  shardweave_target_tokens_total: ['counter', 'Targets that counted in the loss.'],
  shardweave_loss: ['gauge', 'Training loss of the last step, in nats a target.'],
  shardweave_validation_loss: ['gauge', 'Loss of the last evaluation, in nats a target.'],
  shardweave_gradient_norm: ['gauge', 'Norm of all gradients before clipping.'],
  shardweave_learning_rate: ['gauge', 'Learning rate of the last step.'],
  shardweave_loss_scale: ['gauge', 'What losses are multiplied by before backward.'],
  shardweave_step_seconds: ['gauge', 'Time of the last step.'],
  shardweave_tokens_per_second: ['gauge', 'Tokens of the last step by its time, over all ranks.'],
  shardweave_rank_state: ['gauge', '1 for the state that the rank is in, 0 for the others.'],
  shardweave_rank_step: ['gauge', 'Last step that the rank told of.'],
  shardweave_rank_heard_timestamp_seconds: ['gauge', 'When the rank told something last.'],
  shardweave_rank_memory_bytes: ['gauge', 'Held on the device at the peak of a phase, by tag.'],
  shardweave_rank_sent_bytes_total: ['counter', 'Payload that the rank sent in steps.'],
  shardweave_rank_received_bytes_total: ['counter', 'Payload that the rank received in steps.'],
  shardweave_rank_collective_seconds_total: ['counter', 'Time with a collective under way.'],
  shardweave_rank_exposed_collective_seconds_total: [
    'counter',
    'Time with a collective under way and a device without work.',
  ],
  shardweave_saves_total: ['counter', 'Saves that are whole and on the disk.'],
  shardweave_last_save_step: ['gauge', 'Step of the last save.'],
  shardweave_warnings_total: ['counter', 'Warnings, each text once.'],
} as const satisfies Readonly<Record<string, readonly [Kind, string]>>;

type Name = keyof typeof HELP;
type RankState = (typeof RANK_STATES)[number];

const RANK_STATES = ['ready', 'training', 'done', 'failed', 'killed', 'stopped'] as const;

export class PrometheusText {
  readonly #families: ReadonlyMap<Name, Family>;

  constructor() {
    const names = Object.keys(HELP) as Name[];
    this.#families = new Map(
      names.map((name) => [name, { kind: HELP[name][0], help: HELP[name][1], samples: new Map() }]),
    );
  }

  add(record: RunRecord): void {
    switch (record.type) {
      case 'run':
        this.#set('shardweave_run_info', 1, { title: record.title });
        this.#set('shardweave_planned_steps', record.steps);
        return;
      case 'step':
        this.#step(record);
        return;
      case 'ready':
        this.#state(record.rank, 'ready');
        return;
      case 'rank':
        this.#rank(record);
        return;
      case 'rankEnd':
        this.#state(record.rank, record.end);
        return;
      case 'save':
        this.#count('shardweave_saves_total', 1);
        this.#set('shardweave_last_save_step', record.step);
        return;
      case 'warning':
        this.#count('shardweave_warnings_total', 1);
    }
  }

  /** All families that have a value, as text. */
  text(): string {
    const lines: string[] = [];
    for (const [name, { kind, help, samples }] of this.#families) {
      if (samples.size > 0) {
        lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${kind}`);
      }
      for (const [labels, value] of samples) {
        lines.push(`${name}${labels} ${numberText(value)}`);
      }
    }
    return `${lines.join('\n')}\n`;
  }

  #step(line: Extract<RunRecord, { readonly type: 'step' }>): void {
    this.#set('shardweave_step', line.step);
    this.#count('shardweave_steps_total', 1);
    this.#count('shardweave_target_tokens_total', line.targets);
    this.#set('shardweave_loss', line.loss ?? Number.NaN);
    this.#set('shardweave_gradient_norm', line.gradNorm ?? Number.NaN);
    this.#set('shardweave_learning_rate', line.lr);
    this.#set('shardweave_loss_scale', line.lossScale);
    this.#set('shardweave_step_seconds', line.stepMs / 1000);
    this.#set('shardweave_tokens_per_second', line.tokensPerSecond);
    if (line.validLoss !== undefined) {
      this.#set('shardweave_validation_loss', line.validLoss);
    }
    if (line.skipped) {
      const reason = line.targets === 0 ? 'no_targets' : 'overflow';
      this.#count('shardweave_skipped_steps_total', 1, { reason });
    }
  }

  #rank(status: Extract<RunRecord, { readonly type: 'rank' }>): void {
    const { rank } = status;
    this.#state(rank, 'training');
    this.#set('shardweave_rank_step', status.step, { rank });
    this.#set('shardweave_rank_heard_timestamp_seconds', status.atMs / 1000, { rank });
    for (const { phase, bytes } of status.phases) {
      for (const tag of MEMORY_TAGS) {
        this.#set('shardweave_rank_memory_bytes', bytes[tag], { rank, phase, tag });
      }
    }
    const { collectiveMs, exposedMs } = status;
    this.#count('shardweave_rank_sent_bytes_total', status.bytesSent, { rank });
    this.#count('shardweave_rank_received_bytes_total', status.bytesReceived, { rank });
    this.#count('shardweave_rank_collective_seconds_total', collectiveMs / 1000, { rank });
    this.#count('shardweave_rank_exposed_collective_seconds_total', exposedMs / 1000, { rank });
  }

  #state(rank: number, state: RankState): void {
    for (const each of RANK_STATES) {
      this.#set('shardweave_rank_state', each === state ? 1 : 0, { rank, state: each });
    }
  }

  #set(name: Name, value: number, labels: Labels = {}): void {
    this.#families.get(name)!.samples.set(labelText(labels), value);
  }

  #count(name: Name, more: number, labels: Labels = {}): void {
    const { samples } = this.#families.get(name)!;
    const key = labelText(labels);
    samples.set(key, (samples.get(key) ?? 0) + more);
  }
}

function labelText(labels: Labels): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escaped(value)}"`);
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`;
}

function escaped(value: string | number): string {
  return String(value).replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');
}

function numberText(value: number): string {
  if (Number.isFinite(value)) {
    return String(value);
  }
  return Number.isNaN(value) ? 'NaN' : value > 0 ? '+Inf' : '-Inf';
}
