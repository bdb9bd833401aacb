// Whole runs have all ranks in this process, on the cpu device.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parameterCount, readSafetensors } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { RankFailedError, SignalError, UsageError } from '../src/errors.js';
import { runInMemory } from '../src/launch/run-in-memory.js';
import { runJob } from '../src/launch/run-job.js';
import { PRESETS } from '../src/model/presets.js';
import { RunMonitor } from '../src/output/run-monitor.js';
import { Terminal } from '../src/output/terminal.js';
import { parseFlags } from './support/parse-flags.js';
import { ROOT, runFlags, worstRatio } from './support/run-flags.js';

/** A nano model on the reference text, which takes fractions of a second. */
const QUICK = `--device cpu --model nano --data ${ROOT}tooling/reference/data/tiny/text.txt --seq 16 --steps 4`;
const quick = (flags: string) => runFlags(`${QUICK} ${flags}`.split(' ').filter(Boolean));
const losses = async (flags: string) => (await quick(flags)).steps.map((step) => step.loss);
const folder = () => join(newFolder(), 'run');

describe('what is trained', () => {
  it('does not depend on how rows are cut, shuffled and with dropout', async () => {
    const alone = await losses('--strategy single --batch 12 --dropout 0.2');
    const without = await losses('--strategy single --batch 12');
    expect(worstRatio(alone, without)).toBeGreaterThan(1e-3);
    for (const cut of [
      '--ranks 3 --grad-accum 2',
      '--ranks 4 --checkpoint-activations',
      ...(process.env.SHARDWEAVE_LONG === '1' ? ['--ranks 2', '--ranks 5 --grad-accum 2'] : []),
    ]) {
      expect(worstRatio(await losses(`${cut} --batch 12 --dropout 0.2`), alone), cut).toBeLessThan(
        2e-6,
      );
    }
  });

  it('depends on the seed, and on nothing else', async () => {
    const first = await losses('--seed 3');
    expect(await losses('--seed 3')).toEqual(first);
    expect(await losses('--seed 4')).not.toEqual(first);
  });

  it('goes on from a model that was written', async () => {
    const out = folder();
    const config = await resolveConfig(
      parseFlags(`${QUICK} --out ${out} --quiet`.split(' '), () => {}),
    );
    const terminal = new Terminal({
      out: process.stdout,
      err: process.stderr,
      isQuiet: true,
      env: {},
      steps: 4,
    });
    const monitor = new RunMonitor(config, terminal);
    const signal = new AbortController().signal;
    await runJob(config, { entry: '', signal, onEvent: monitor.handle });
    monitor.end({ kind: 'done' });

    const summary = JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8'));
    const lines = readFileSync(join(out, 'metrics.jsonl'), 'utf8').trimEnd().split('\n');
    const metrics = lines.map((line) => JSON.parse(line));
    expect(metrics.map((line) => line.step)).toEqual([1, 2, 3, 4]);
    expect(Object.keys(metrics[0])).toEqual([
      'step',
      'loss',
      'targets',
      'gradNorm',
      'groups',
      'lr',
      'lossScale',
      'skipped',
      'stepMs',
      'tokensPerSecond',
      'tokens',
      'epoch',
      'peakBytes',
      'wireBytes',
      'collectiveMs',
      'exposedMs',
      'atMs',
    ]);
    expect(summary).toMatchObject({
      params: parameterCount(PRESETS.nano.config),
      finalLoss: metrics[3].loss,
      skippedSteps: { overflow: 0, noTargets: 0 },
      device: expect.stringMatching(/^cpu/),
      numericClass: expect.stringMatching(
        /^cpu kernels \d+ for (plain|fused) products, (.+, )?bits [0-9a-f]{16}$/,
      ),
    });
    const counts = ['bytesSent', 'bytesReceived', 'allGathers', 'reduceScatters', 'allReduces'];
    expect(summary.ranks.map((rank: object) => Object.keys(rank))).toEqual(
      [0, 1].map(() => [
        'rank',
        'device',
        'description',
        'peakBytes',
        'hostBytes',
        'diskBytes',
        ...counts,
      ]),
    );
    const { total, ...tags } = summary.ranks[0].peakBytes;
    expect(Object.keys(tags)).toContain('optimizer');
    expect(total).toBeGreaterThan(Math.max(...(Object.values(tags) as number[])));
    expect(existsSync(join(out, 'loss.svg'))).toBe(true);

    const { tensors, metadata } = readSafetensors(
      readFileSync(join(out, 'model/model.safetensors')),
    );
    expect(metadata).toEqual({ format: 'pt' });
    expect([...tensors.keys()]).toContain('transformer.h.1.attn.c_attn.weight');
    expect([...tensors.keys()]).not.toContain('lm_head.weight');
    expect([...tensors.values()].every(({ dtype }) => dtype === 'f32')).toBe(true);

    // At a rate of 0 the first step's loss is that of the written model, which is below that of an
    // untrained one.
    const again = await losses(`--model ${out}/model --lr 0`);
    const fresh = await losses('--lr 0');
    expect(again[0]).toBeLessThan(fresh[0]! - 0.05);
  });
});

describe('collectives of a step', () => {
  it('are 2N - 1 gathers and N reductions with resharding, N and N without', async () => {
    const units = 3; // There are two blocks and the root.
    for (const [flag, gathers] of [
      ['--reshard', 2 * units - 1],
      ['--no-reshard', units],
    ] as const) {
      const { reports } = await quick(`--ranks 4 ${flag}`);
      for (const report of reports) {
        expect(report).toMatchObject({
          allGathers: 4 * gathers,
          reduceScatters: 4 * units,
          allReduces: 2 * 4, // These are for losses and norms.
        });
      }
    }
  });

  it('take longer by the injected delay, and a trace shows them', async () => {
    const trace = join(newFolder(), 'trace.json');
    await quick(`--steps 2 --inject-delay-ms 30 --trace ${trace}`);
    const { traceEvents } = JSON.parse(readFileSync(trace, 'utf8')) as {
      traceEvents: { pid: number; cat?: string; name: string; ts: number; dur: number }[];
    };
    const gathers = traceEvents.filter(({ name }) => name === 'allGather');
    expect(new Set(gathers.map(({ pid }) => pid))).toEqual(new Set([0, 1]));
    for (const { dur } of gathers) {
      expect(dur).toBeGreaterThanOrEqual(30_000);
    }
    expect(Math.min(...traceEvents.flatMap(({ ts }) => ts ?? []))).toBe(0);
    expect(traceEvents.some(({ cat }) => cat === 'device')).toBe(true);
  });
});

describe('a run that ends early', () => {
  it('a usage error in the text is said once', async () => {
    const error: unknown = await quick('--data /nowhere').catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(UsageError);
  });

  it('a run that Ctrl-C ends rejects with it', async () => {
    const stop = new AbortController();
    const reason = new SignalError('SIGINT');
    setTimeout(() => stop.abort(reason), 300);
    const flags = `${QUICK} --steps 100000`.split(' ');
    await expect(runFlags(flags, { signal: stop.signal })).rejects.toBe(reason);
  });

  it('a run that one rank ends names it and its reason, though others fail for it', async () => {
    const peerLost = Object.assign(new Error('peer 2 lost'), { code: 'PEER_LOST' });
    const error: unknown = await runInMemory({
      ranks: 4,
      signal: new AbortController().signal,
      onEvent: () => {},
      work: async (rank, _, signal) => {
        if (rank === 2) {
          await new Promise((resolve) => setTimeout(resolve, 20));
          throw new Error('out of memory');
        }
        if (rank === 1) {
          throw peerLost;
        }
        await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()));
        throw peerLost;
      },
    }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(RankFailedError);
    expect((error as RankFailedError).rank).toBe(2);
    expect((error as Error).message).toBe(
      'rank 2 of 4 failed before the first step: out of memory',
    );
  });
});
