// --check compares what plan predicts for a run with what the run took, on the screen and in
// summary.json.

import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { runJob } from '../src/launch/run-job.js';
import { RunMonitor } from '../src/output/run-monitor.js';
import { Terminal } from '../src/output/terminal.js';
import { checkLines } from '../src/plan/check-run.js';
import type { RankCheck } from '../src/rank/events.js';
import { parseFlags } from './support/parse-flags.js';
import { tinyFlags } from './support/tiny-run.js';

class Sink extends Writable {
  text = '';
  override _write(chunk: Buffer, _: string, done: () => void): void {
    this.text += chunk.toString();
    done();
  }
}

/** What a run prints after its last step, and what its summary says. */
async function checked(flags: string) {
  const root = newFolder();
  const line = `${tinyFlags(root)} --steps 3 --check --out ${root}/run ${flags.replace('DIR', `${root}/rest`)}`;
  const config = await resolveConfig(parseFlags(line.split(' '), () => {}));
  const [out, err] = [new Sink(), new Sink()];
  const terminal = new Terminal({ out, err, env: {}, isQuiet: false, steps: config.steps });
  const monitor = new RunMonitor(config, terminal);
  const { signal } = new AbortController();
  await runJob(config, { entry: '', signal, onEvent: monitor.handle });
  monitor.end({ kind: 'done' });
  const summary = JSON.parse(readFileSync(join(root, 'run/summary.json'), 'utf8'));
  rmSync(root, { recursive: true });
  const lines = out.text.split('\n');
  const at = lines.findIndex((one) => /^check +planned +taken$/.test(one));
  return { lines: lines.slice(at + 1, -3), check: summary.check as RankCheck[] };
}

describe('--check', () => {
  it.each([
    ['--ranks 2 --precision bf16 --cpu-offload', ['sent', 'received', 'host']],
    ['--ranks 3 --strategy ddp --grad-accum 2', ['sent', 'received']],
    ['--strategy offload --offload-dir DIR', ['disk']],
  ])('has equal bytes: %s', async (flags, names) => {
    const { lines, check } = await checked(flags);
    const rows = lines.map((line) => line.split(/ {2,}/));
    const expected = ['forward', 'backward', 'norm', 'update', ...names];
    expect(rows.map(([name]) => name)).toEqual([...expected, 'a step']);
    for (const [, planned, taken, verdict] of rows.slice(0, -1)) {
      expect([taken, verdict]).toEqual([planned, 'equal']);
    }
    expect(rows.at(-1)!.slice(1).join(' ')).toMatch(/^[\d.]+ m?s [\d.]+ m?s [+-]\d+ %$/);
    for (const [rank, one] of check.entries()) {
      expect(one).toMatchObject({ rank, steps: 3 });
      expect(one.measured).toEqual(one.planned);
      expect(one.planned.phases).toHaveLength(4);
      expect(typeof one.stepMs).toBe(rank === 0 ? 'number' : 'undefined');
    }
  });

  it('names the rank and the tag that took other than planned', async () => {
    const { check } = await checked('--ranks 2');
    const [first, second] = check as [RankCheck, RankCheck];
    const phases = second.measured.phases.map(({ phase, bytes }) => ({
      phase,
      bytes:
        phase === 'forward'
          ? { ...bytes, activation: bytes.activation + 12, total: bytes.total + 12 }
          : bytes,
    }));
    const bytesSent = second.measured.bytesSent - 8;
    const other = { ...second, measured: { ...second.measured, phases, bytesSent } };
    const lines = checkLines([first, other], 2 * first.stepMs!);
    expect(lines.filter((line) => !line.endsWith('equal')).slice(1)).toEqual([
      expect.stringMatching(/^forward .* rank 1: \+12 bytes$/),
      expect.stringMatching(/^ {2}activation \(forward\) .* rank 1: \+12 bytes$/),
      expect.stringMatching(/^sent .* rank 1: -8 bytes$/),
      expect.stringMatching(/^a step .* \+100 %$/),
    ]);
  });
});
