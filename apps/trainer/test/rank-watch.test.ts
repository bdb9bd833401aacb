// A rank records memory by phase, and the time of its collectives beside that of its device.

import { appendFileSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { MEMORY_TAGS } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { PrometheusText } from '../src/dashboard/prometheus.js';
import { runJob } from '../src/launch/run-job.js';
import { RunDirectory } from '../src/output/run-directory.js';
import { RunHistory } from '../src/output/run-history.js';
import { RunMonitor } from '../src/output/run-monitor.js';
import type { RunRecorderOptions } from '../src/output/run-recorder.js';
import type { EventRecord, RunRecord } from '../src/output/run-records.js';
import { Terminal } from '../src/output/terminal.js';
import { type PageRecord, unpackSteps } from '../src/page/run/step-table.js';
import { CommWatch, commTimes } from '../src/rank/comm-watch.js';
import type { RankEvent, RankStatus } from '../src/rank/events.js';
import { STEP_PHASES } from '../src/rank/step/phase-memory.js';
import { parseFlags } from './support/parse-flags.js';
import { ROOT, runFlags } from './support/run-flags.js';

const QUICK = `--device cpu --threads 1 --model nano --seq 16 --batch 4 --steps 3 --data ${ROOT}tooling/reference/data/tiny/text.txt`;

async function statusOf(flags: string): Promise<RankStatus[]> {
  const found: RankStatus[] = [];
  const onEvent = (event: RankEvent) => event.type === 'rank' && found.push(event.status);
  const out = join(newFolder(), 'run');
  await runFlags(`${QUICK} --out ${out} ${flags}`.split(' '), { onEvent });
  return found;
}

describe('a device', () => {
  /**
   * Makes a device whose work takes until `finish` is called, and whose clock belongs to the test.
   */
  function device() {
    const made = {
      dispatches: 0,
      now: 0,
      finish: () => {},
      sync: () =>
        new Promise<void>((resolve) => {
          made.finish = resolve;
        }),
    };
    return made;
  }

  it('a device that works hides a collective, and one that has nothing to do exposes it', async () => {
    const backend = device();
    const watch = new CommWatch(backend, () => backend.now);
    watch.begin();
    backend.dispatches = 3; // The collective is issued at 0 and finished at 40.
    await nextTurn();
    backend.now = 40;
    backend.finish();
    await nextTurn();
    await nextTurn();
    backend.now = 100;
    watch.onCall({ startMs: 10, endMs: 100 });
    expect(watch.take()).toEqual({ collectiveMs: 90, exposedMs: 60 });
    // The end of the collective lets the host issue another dispatch, behind which a second
    // collective is hidden.
    backend.dispatches = 4;
    await nextTurn();
    backend.now = 130;
    watch.onCall({ startMs: 100, endMs: 130 });
    expect(watch.take()).toEqual({ collectiveMs: 120, exposedMs: 60 });
    watch.begin();
    expect(watch.take()).toEqual({ collectiveMs: 0, exposedMs: 0 });
  });

  it('a device that is given more while it works goes on without a gap', async () => {
    const backend = device();
    const watch = new CommWatch(backend, () => backend.now);
    watch.begin();
    backend.dispatches = 1;
    await nextTurn();
    backend.now = 10;
    backend.dispatches = 2;
    backend.finish();
    await nextTurn();
    backend.now = 20;
    backend.finish();
    await nextTurn();
    watch.onCall({ startMs: 0, endMs: 50 });
    expect(watch.take()).toEqual({ collectiveMs: 50, exposedMs: 30 });
  });
});

it('collectives that overlap or nest count once, and so does work', () => {
  const calls = [
    [30, 40],
    [0, 10],
    [5, 20],
    [32, 34],
  ] as const;
  const busy = [
    [8, 12],
    [2, 10],
    [35, 100],
    [36, 38],
  ] as const;
  expect(commTimes(calls, busy)).toEqual({ collectiveMs: 30, exposedMs: 15 });
  expect(commTimes([], busy)).toEqual({ collectiveMs: 0, exposedMs: 0 });
});

describe('a run that is kept', () => {
  it('tells of each rank and step what was held in each phase, and what went over the wire', async () => {
    const found = await statusOf('--ranks 2 --grad-accum 2');
    expect(found.map(({ rank, step }) => `${step}.${rank}`).sort()).toEqual(
      [1, 2, 3].flatMap((step) => [`${step}.0`, `${step}.1`]),
    );
    for (const { phases, bytesSent, collectiveMs, exposedMs } of found) {
      expect(phases.map(({ phase }) => phase)).toEqual(STEP_PHASES);
      for (const { bytes } of phases) {
        expect(MEMORY_TAGS.reduce((sum, tag) => sum + bytes[tag], 0)).toBe(bytes.total);
        expect(bytes.parameter).toBe(phases[0]!.bytes.parameter);
      }
      expect(bytesSent).toBeGreaterThan(0);
      expect(exposedMs).toBeLessThanOrEqual(collectiveMs);
    }
    // Parameters are gathered only while they are used, and moments exist from the first update on.
    const [first, , third] = found.filter(({ rank }) => rank === 0);
    const [forward, backward, , update] = third!.phases.map(({ bytes }) => bytes);
    expect(forward!.gathered).toBeGreaterThan(0);
    expect(backward!.gradient).toBeGreaterThan(0);
    expect(update!.activation).toBeLessThan(backward!.activation);
    expect(first!.phases[0]!.bytes.optimizer).toBe(0);
    expect(forward!.optimizer).toBe(2 * forward!.parameter);
  });

  it('agrees with the summary, whose peak is that of all phases', async () => {
    const out = join(newFolder(), 'run');
    const peaks: number[] = [];
    const { reports } = await runFlags(
      `${QUICK} --strategy single --valid-fraction 0.1 --eval-every 2 --out ${out}`.split(' '),
      {
        onEvent: (event) => {
          if (event.type === 'rank') {
            peaks.push(...event.status.phases.map(({ bytes }) => bytes.total));
          }
        },
      },
    );
    expect(Math.max(...peaks)).toBe(reports[0]!.peakBytes.total);
  });

  it('says nothing of each rank where nobody looks', async () => {
    const found: string[] = [];
    await runFlags(QUICK.split(' '), { onEvent: ({ type }) => found.push(type) });
    expect(found).not.toContain('rank');
    expect(found).toContain('step');
  });
});

/** The lines of steps that are told to whoever comes late. */
const linesIn = (records: readonly PageRecord[]) =>
  records.flatMap((record) => (record.type === 'steps' ? unpackSteps(record) : []));

describe('events.jsonl', () => {
  const folder = () => join(newFolder(), 'run');
  const read = (path: string): EventRecord[] =>
    readFileSync(join(path, 'events.jsonl'), 'utf8')
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));

  /** Runs as the command does. `onEvent` may end the run. */
  async function record(
    flags: string,
    onEvent: (event: RankEvent) => void = () => {},
    { out = folder(), ...options }: RunRecorderOptions & { readonly out?: string } = {},
  ) {
    const parsed = parseFlags(`${QUICK} --out ${out} ${flags}`.split(' '), () => {});
    const config = await resolveConfig(parsed);
    const io = { out: process.stdout, err: process.stderr, isQuiet: true, env: {}, steps: 3 };
    const monitor = new RunMonitor(config, new Terminal(io), options);
    const { signal } = new AbortController();
    const handle = (event: RankEvent) => {
      monitor.handle(event);
      onEvent(event);
    };
    try {
      await runJob(config, { entry: '', signal, onEvent: handle });
      monitor.end({ kind: 'done' });
    } catch (error) {
      monitor.end({ kind: 'failed', reason: (error as Error).message });
    }
    return { out, events: read(out), held: monitor.history.records() };
  }

  it('holds the run in order, with what ranks said where steps double and in the end', async () => {
    const { events, held } = await record('--ranks 2');
    const names = events
      .filter(({ type }) => type !== 'rankEnd') // A rank may end before rank 0 has made its text.
      .map((event) => (event.type === 'rank' ? `rank ${event.step}` : event.type));
    expect(names).toEqual([
      'run',
      ...['ready', 'ready', 'header', 'compute', 'start'],
      ...['rank 1', 'rank 1', 'rank 2', 'rank 2'],
      ...['sample', 'rank 3', 'rank 3', 'runEnd'],
    ]);
    const ended = events.flatMap((event) => (event.type === 'rankEnd' ? [event.rank] : []));
    expect(ended.sort()).toEqual([0, 1]);
    expect(events[0]).toMatchObject({ title: 'nano, fsdp on 2 ranks, fp32', steps: 3, ranks: 2 });
    expect(events.at(-1)).toMatchObject({ type: 'runEnd', end: 'done' });
    // Whoever joins late is told the same, but only the last event of each rank.
    const last = held.flatMap((event) => (event.type === 'rank' ? [event.step] : []));
    expect(last).toEqual([3, 3]);
    expect(linesIn(held)).toHaveLength(3);
  });

  it('says how a run ended that failed, and which of its ranks began it', async () => {
    const failing = (event: RankEvent) => {
      if (event.type === 'step') {
        throw new Error('the disk is full');
      }
    };
    const { events } = await record('--ranks 2', failing);
    const ends = events.flatMap((event) => (event.type === 'rankEnd' ? [event] : []));
    expect(ends.map(({ rank, end }) => [rank, end])).toEqual([
      [0, 'failed'],
      [1, 'stopped'],
    ]);
    expect(ends[0]!.reason).toBe('the disk is full');
    expect(events.at(-1)).toMatchObject({ type: 'runEnd', end: 'failed' });
  });

  it('the file of a run that goes on loses what is behind the save, and no counter has a step twice', async () => {
    const { out } = await record('--ranks 1 --save-every 2 --keep 9');
    rmSync(join(out, 'saves', 'step-000003'), { recursive: true });
    // The file ends as if the run was killed while writing.
    appendFileSync(join(out, 'events.jsonl'), '{"type":"warn');
    const earlier: RunRecord[] = [];
    const counters = new PrometheusText();
    const { events, held } = await record('--ranks 1 --save-every 2 --resume auto', undefined, {
      out,
      listeners: [
        { onRecord: (each) => counters.add(each), onEarlier: (each) => earlier.push(each) },
      ],
    });
    const [first, second] = events.flatMap(({ type }, i) => (type === 'run' ? [i] : []));
    const stepsOf = (part: readonly EventRecord[]) =>
      part.flatMap((event) => ('step' in event ? [`${event.type} ${event.step}`] : [])).sort();
    expect(stepsOf(events.slice(first, second))).toEqual(['rank 1', 'rank 2', 'save 2', 'start 0']);
    const after = ['rank 3', 'sample 3', 'save 3', 'start 2'];
    expect(stepsOf(events.slice(second))).toEqual(after);
    const told = earlier.map((each) => [each.type, 'step' in each && each.step]);
    expect(told).toEqual([1, 2].map((step) => ['step', step]));
    expect(linesIn(held)).toHaveLength(3);
    expect(counters.text()).toMatch(/^shardweave_steps_total 1$/m);
    expect(counters.text()).toMatch(/^shardweave_saves_total 1$/m);
  });

  it('whoever comes late to a job that starts again is told of no later step', () => {
    const history = new RunHistory();
    const save = { bytes: 4, ms: 1, waitMs: 1, atMs: 1 };
    history.add({ type: 'warning', text: 'slow disk' });
    for (const step of [2, 4]) {
      history.add({ type: 'save', step, directory: `${step}`, ...save });
    }
    history.forgetSteps(2);
    expect(history.records()).toEqual([
      { type: 'warning', text: 'slow disk' },
      { type: 'save', step: 2, directory: '2', ...save },
    ]);
  });

  it('a job that starts again is told nothing of what waited for the other ranks', async () => {
    const config = await resolveConfig(parseFlags(`${QUICK} --ranks 2`.split(' '), () => {}));
    const io = { out: process.stdout, err: process.stderr, isQuiet: true, env: {}, steps: 3 };
    const told: RunRecord[] = [];
    const monitor = new RunMonitor(config, new Terminal(io), {
      listeners: [{ onRecord: (record) => void told.push(record) }],
    });
    const ready = (rank: number): RankEvent => ({
      type: 'ready',
      ready: {
        ...{ rank, device: 'cpu', description: '1 thread', isSoftware: true, host: 'a' },
        ...{ numericClass: '', params: 5, shardBytes: 4, valid: undefined },
        data: { tokens: 9, documents: 0, cut: 0, pieces: 0, rows: 1000 },
      },
    });
    const step = (loss: number): RankEvent => ({
      type: 'step',
      metrics: {
        ...{ step: 1, loss, targets: 9, stepMs: 1, tokensPerSecond: 9, lr: 0.1 },
        ...{ gradNorm: null, lossScale: 1, skipped: false, tokens: 9, epoch: 1 },
      },
      resources: { peakBytes: 0, wireBytes: 0 },
    });
    monitor.handle(ready(0));
    monitor.handle(step(7));
    monitor.restart(config, 'rank 1 was lost');
    monitor.handle(ready(0));
    monitor.handle(step(5));
    monitor.handle(ready(1));
    expect(told.filter(({ type }) => type === 'step')).toMatchObject([{ step: 1, loss: 5 }]);
  });

  it('holds saves and warnings, each of these once', async () => {
    const out = folder();
    const directory = new RunDirectory(out);
    const config = await resolveConfig(parseFlags(QUICK.split(' '), () => {}));
    const io = { out: process.stdout, err: process.stderr, isQuiet: true, env: {}, steps: 3 };
    const monitor = new RunMonitor(config, new Terminal(io), {
      listeners: [{ onRecord: (record) => directory.add(record) }],
    });
    const save = { step: 2, directory: 'saves/step-000002', bytes: 40, ms: 7, waitMs: 1 };
    monitor.handle({ type: 'save', save });
    monitor.handle({ type: 'warning', text: 'slow disk' });
    monitor.handle({ type: 'warning', text: 'slow disk' });
    directory.close();
    expect(read(out).slice(1)).toMatchObject([
      { type: 'save', ...save },
      { type: 'warning', text: 'slow disk' },
    ]);
  });
});
