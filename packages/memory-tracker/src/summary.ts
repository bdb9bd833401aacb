// Describes a trace in words: the most that was held, and the modules that made it.

import { formatBytes } from '@shardweave/dtypes/messages';
import { MEMORY_TAGS } from '@shardweave/tensor-core';
import { firstForward, type MemorySample, type MemoryTrace } from './memory-trace.js';

/** A module and what its outputs take in one forward of the model. */
export interface Producer {
  readonly name: string;
  readonly type: string;
  /** How often it ran. */
  readonly numCalls: number;
  readonly activationBytes: number;
}

/** The modules with the largest activations in the trace's first pass, largest first. */
export function topProducers(trace: MemoryTrace, count = 10): Producer[] {
  const producers = new Map<string, Producer>();
  for (const { name, type, activationBytes } of firstForward(trace)) {
    const key = `${name}\n${type}`; // a wrapper has the path of what it wraps
    const before = producers.get(key);
    producers.set(key, {
      name,
      type,
      numCalls: (before?.numCalls ?? 0) + 1,
      activationBytes: (before?.activationBytes ?? 0) + activationBytes,
    });
  }
  // The sort is stable, so equal producers stay in the order of the forward.
  const sorted = [...producers.values()].sort((a, b) => b.activationBytes - a.activationBytes);
  return sorted.slice(0, count);
}

/** A few lines: how much was held and where, what was gathered, and the top producers. */
export function summaryText(trace: MemoryTrace, count = 10): string {
  const { samples } = trace;
  if (samples.length === 0) {
    return 'memory: no samples\n';
  }
  const numPasses = new Set(samples.map(({ pass }) => pass)).size;
  const peak = largest(samples, ({ liveBytes }) => liveBytes.total);
  const { reservedBytes } = largest(samples, (sample) => sample.reservedBytes);
  const gathered = samples.reduce((sum, { gatheredBytes }) => sum + gatheredBytes, 0);
  const tags = MEMORY_TAGS.filter((tag) => peak.liveBytes[tag] > 0);
  const made = firstForward(trace).reduce((sum, sample) => sum + sample.activationBytes, 0);
  const producers = topProducers(trace, count);
  return [
    `memory: ${samples.length} samples of ${numPasses} forward${numPasses === 1 ? '' : 's'}`,
    `most live  ${formatBytes(peak.liveBytes.total)} in ${peak.phase} of ${labelOf(peak)}: ${tags.map((tag) => `${tag} ${formatBytes(peak.liveBytes[tag])}`).join(', ')}`,
    `reserved   ${formatBytes(reservedBytes)}`,
    `gathered   ${formatBytes(gathered)}`,
    `activations of the first forward ${formatBytes(made)}, by module:`,
    ...producers.map((producer, rank) => producerLine(producer, rank, made)),
    '',
  ].join('\n');
}

/** The path of a module, or its class where it is the tracked module itself. */
export function labelOf({ name, type }: { readonly name: string; readonly type: string }): string {
  return name === '' ? type : name;
}

function producerLine(producer: Producer, rank: number, made: number): string {
  const share = made === 0 ? 0 : (100 * producer.activationBytes) / made;
  const bytes = formatBytes(producer.activationBytes).padStart(10);
  const calls = producer.numCalls === 1 ? '' : `, ${producer.numCalls} calls`;
  const kind = producer.name === '' ? '' : ` (${producer.type})`;
  return `${String(rank + 1).padStart(3)}. ${bytes} ${share.toFixed(0).padStart(3)} %  ${labelOf(producer)}${kind}${calls}`;
}

function largest(
  samples: readonly MemorySample[],
  measure: (sample: MemorySample) => number,
): MemorySample {
  return samples.reduce((a, b) => (measure(b) > measure(a) ? b : a));
}
