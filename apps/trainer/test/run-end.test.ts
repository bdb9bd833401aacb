// A run that is asked to end, in a terminal that people hold: it saves, says so where somebody can
// read it, and leaves no process. run-end.long.test.ts has the same over each transport.

import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { DivergedError, RankFailedError, SignalError } from '../src/errors.js';
import { Interrupt } from '../src/interrupt.js';
import { runRestarting } from '../src/launch/run-restarting.js';
import type { RunConfig } from '../src/run-config.js';
import { askedEnd, runEnd } from '../src/run-end.js';
import { buildCommand } from './support/build-command.js';
import { leftRun, SAVED } from './support/left-run.js';
import { TerminalCommand } from './support/terminal-command.js';
import { tinyFlags } from './support/tiny-run.js';

vi.setConfig({ testTimeout: 120_000 });

let train: string;
const root = newFolder();
beforeAll(async () => {
  const script = await buildCommand();
  train = `${process.execPath} ${script} train ${tinyFlags(root)} --steps 100000 --save-every 100000`;
});

function folder(name: string): string {
  const cwd = join(root, name);
  mkdirSync(cwd);
  return cwd;
}

describe.concurrent('a run in a terminal', () => {
  it('saves at Ctrl-C where `| tee` dies at the same moment, and says so on the terminal', async () => {
    const cwd = folder('tee');
    // Steps take so long that tee is dead before the next one is told.
    const line = `${train} --inject-delay-ms 30 --out r 2>&1 | tee log`;
    using command = new TerminalCommand(line, { cwd });
    await command.shows(/step +2\//);
    command.type('\x03');
    await command.end();
    expect(leftRun(join(cwd, 'r'))).toEqual(SAVED);
    expect(command.said).toMatch(
      /^Stopped by Ctrl-C after step \d+, saved in .*\/r\/saves\/.*\r$/m,
    );
    expect(command.said).toMatch(/^Go on with: .*--resume auto\r$/m);
    expect(command.said).toMatch(/^(\^C)?Ctrl-C: ending the step on its way, then saving\./m);
  });

  it('says on the terminal why it failed where the reader of its errors has left', async () => {
    const line = `${train} --lr 1e30 --warmup 0 --out r 2>&1 > log | true`;
    using command = new TerminalCommand(line, { cwd: folder('errors') });
    await command.end();
    expect(command.said).toMatch(/^error: The loss is not a number at step \d/m);
  });

  it('saves where its terminal is closed, and ends without a stack of Node', async () => {
    const cwd = folder('closed');
    using command = new TerminalCommand(`${train} --out r 2> err`, { cwd });
    await command.shows(/step +2\//);
    command.hangUp();
    await command.end();
    expect(leftRun(join(cwd, 'r'))).toEqual(SAVED);
    expect(readFileSync(join(cwd, 'err'), 'utf8')).toMatch(/^(warning: .* the run goes on .*\n)?$/);
  });

  it('goes on under nohup where its terminal is closed', async () => {
    const cwd = folder('nohup');
    const line = `nohup ${train} --steps 120 --out r > log 2>&1`;
    using command = new TerminalCommand(line, { cwd });
    const log = () => readFileSync(join(cwd, 'log'), { encoding: 'utf8', flag: 'a+' });
    await vi.waitFor(() => expect(log()).toMatch(/^step +2\//m), { timeout: 60_000 });
    command.hangUp();
    expect(log()).not.toMatch(/^step +120\//m);
    await command.end();
    expect(log()).toMatch(/^step +120\/120 /m);
    expect(leftRun(join(cwd, 'r')).last).toMatchObject({ type: 'runEnd', end: 'done' });
  });

  it('saves where its reader has seen enough, with the exit code of SIGPIPE', async () => {
    const cwd = folder('head');
    const line = `{ ${train} --out r; echo $? > code; } | head -20 > /dev/null`;
    using command = new TerminalCommand(line, { cwd });
    await command.end();
    expect(readFileSync(join(cwd, 'code'), 'utf8')).toBe('141\n');
    expect(leftRun(join(cwd, 'r'))).toEqual(SAVED);
  });
});

describe('a wish to end', () => {
  /** An interrupt with a clock of the test, which notes the exit codes that it ends with. */
  function interrupted(isPatient: boolean) {
    const exits: number[] = [];
    const clock = { now: 1000 };
    const interrupt = new Interrupt({ exit: (code) => exits.push(code), now: () => clock.now });
    interrupt.lead(() => isPatient);
    return { interrupt, clock, exits };
  }
  const ctrlC = new SignalError('SIGINT');
  const hangUp = new SignalError('SIGHUP');
  const pipe = new SignalError('SIGPIPE', 'a closed output');

  it('wraps a run up or ends it, as the run decides', () => {
    const patient = interrupted(true).interrupt;
    patient.insist(ctrlC);
    expect([patient.wrapUp.reason, patient.signal.aborted]).toEqual([ctrlC, false]);
    const plain = interrupted(false).interrupt;
    plain.ask(hangUp);
    expect([plain.signal.reason, plain.wrapUp.aborted]).toEqual([hangUp, false]);
  });

  it('counts as the second one only from a person, and not within half a second', () => {
    const { interrupt, clock, exits } = interrupted(true);
    interrupt.insist(ctrlC);
    clock.now += 400;
    interrupt.insist(ctrlC);
    clock.now += 5000;
    interrupt.ask(hangUp);
    interrupt.ask(pipe);
    expect(exits).toEqual([]);
    interrupt.insist(new SignalError('SIGTERM'));
    expect(exits).toEqual([143]);
    expect(interrupt.asked).toBe(ctrlC);
  });

  it('a wish behind a closed output is the first one, and gives the exit code', () => {
    const { interrupt, clock, exits } = interrupted(true);
    interrupt.ask(pipe);
    clock.now += 5000;
    interrupt.insist(ctrlC);
    expect([exits, interrupt.asked]).toEqual([[], ctrlC]);
  });
});

describe('--max-restarts', () => {
  it('begins anew before the first save, goes on behind it, and gives up in the end', async () => {
    const out = folder('restarts');
    const asked = { out, maxRestarts: 2, resume: '/another/run' } as RunConfig;
    const starts: (string | undefined)[] = [];
    const fails = async ({ resume }: RunConfig) => {
      starts.push(resume);
      if (starts.length === 2) {
        mkdirSync(join(out, 'saves/step-000003'), { recursive: true });
      }
      throw new RankFailedError(1, `rank 1 failed for the ${starts.length}. time`);
    };
    const early = undefined;
    const config = { steps: 9, patience: undefined };
    const endOf = (error?: unknown) =>
      runEnd({ config, early, misplaced: undefined, asked: undefined, error });
    const told: string[] = [];
    const onRestart = (_: RunConfig, reason: string) => told.push(reason);
    const end = await runRestarting(asked, fails, { endOf, onRestart });
    expect(starts).toEqual(['/another/run', '/another/run', 'auto']);
    expect(told).toEqual([
      expect.stringMatching(/the 1\. time\n.*\(restart 1 of 2\)\.$/),
      expect.stringMatching(/the 2\. time\n.*\(restart 2 of 2\)\.$/),
    ]);
    expect(end).toMatchObject({ why: 'rank-failed', exitCode: 1 });
    expect(end.failure).toMatch(/the 3\. time/);
  });
});

it('a sharded elastic job goes on from its save with one rank less, down to --min-ranks', async () => {
  const out = folder('fewer');
  mkdirSync(join(out, 'saves/step-000003'), { recursive: true });
  const asked = {
    ...{ out, maxRestarts: 1, elastic: true, strategy: 'fsdp' },
    ranks: 4,
    minRanks: 3,
  };
  const starts: unknown[] = [];
  const fails = async ({ ranks, resume }: RunConfig) => {
    starts.push([ranks, resume]);
    throw new RankFailedError(1, 'a rank failed.');
  };
  const config = { steps: 9, patience: undefined };
  const facts = { config, early: undefined, misplaced: undefined, asked: undefined };
  const endOf = (error?: unknown) => runEnd({ ...facts, error });
  const told: string[] = [];
  const onRestart = (_: RunConfig, reason: string) => told.push(reason.split('\n')[1]!);
  await runRestarting(asked as unknown as RunConfig, fails, { endOf, onRestart });
  expect(starts).toEqual([
    [4, undefined],
    [3, 'auto'],
    [3, 'auto'],
  ]);
  expect(told).toEqual([
    'Starting again from the last save (on 3 ranks).',
    'Starting again from the last save (restart 1 of 1).',
  ]);
});

describe('the end of a run', () => {
  const config = {
    steps: 9,
    patience: 2,
    out: 'r',
    saveEvery: undefined,
    transport: 'shm',
  } as const;
  const endOf = (facts: Partial<Parameters<typeof runEnd>[0]>) =>
    runEnd({ config, early: undefined, misplaced: undefined, asked: undefined, ...facts });
  const asked = new SignalError('SIGTERM');
  const rankFailed = new RankFailedError(1, 'rank 1 of 2 failed');

  it.each([
    ['done', {}, { why: 'done', exitCode: 0, mayRestart: false }],
    [
      'done, with its model elsewhere',
      { misplaced: 'it is in /other' },
      { why: 'misplaced', kind: 'failed', exitCode: 1, failure: 'it is in /other' },
    ],
    [
      'out of patience',
      { early: { type: 'early', step: 4, why: 'patience' } },
      { why: 'patience', kind: 'done', exitCode: 0, reason: expect.stringMatching(/--patience/) },
    ],
    [
      'asked to, with a save',
      { early: { type: 'early', step: 4, why: 'asked', save: 'r' }, asked },
      { why: 'asked', kind: 'stopped', exitCode: 143, mayRestart: false, save: 'r' },
    ],
    ['asked to end at once', { error: asked, asked }, { kind: 'stopped', exitCode: 143 }],
    ['asked to behind its last step', { asked }, { why: 'done', kind: 'done', exitCode: 0 }],
    ['a lost rank', { error: rankFailed }, { kind: 'failed', exitCode: 1, mayRestart: true }],
    ['a lost rank as it ends', { error: rankFailed, asked }, { exitCode: 1, mayRestart: false }],
    [
      'a divergence',
      { error: new DivergedError('the loss is not a number') },
      { why: 'diverged', kind: 'failed', exitCode: 1, mayRestart: false },
    ],
  ] as const)('is, for %s', (_, facts, expected) => {
    expect(endOf(facts)).toMatchObject(expected);
  });

  it.each([
    ['saved', 3, config, /^Ctrl-C: ending the step on its way, then saving\. Ctrl-C again/],
    ['at once under mpirun', 3, { ...config, transport: 'mpi' }, /^Ctrl-C: ending\. /],
    ['at once before a step', 0, config, /^Ctrl-C: ending\. Ctrl-C again ends at once\.$/],
    ['at once without --out', 3, { ...config, out: undefined }, /^Ctrl-C: ending\. /],
    ['whole behind the last step', 9, { ...config, out: undefined }, /results are on/],
  ] as const)('is told at the first Ctrl-C: %s', (_, step, of, says) => {
    expect(askedEnd(new SignalError('SIGINT'), { config: of, step, isEarly: false }).says).toMatch(
      says,
    );
  });
});
