// These commands end early: killed without notice, asked to stop, or abandoned by a rank. Processes
// and kills are real.

import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { buildCommand } from './support/build-command.js';
import { expectExactResume } from './support/expect-exact-resume.js';
import { childrenOf, isAlive, startRun } from './support/killed-run.js';
import { ROOT } from './support/run-flags.js';
import { runLine, tinyFlags, told } from './support/tiny-run.js';

// Each test starts several processes, one after the other.
vi.setConfig({ testTimeout: 120_000 });

const isLong = process.env.SHARDWEAVE_LONG === '1';
let script: string;
const root = newFolder();
beforeAll(async () => {
  script = await buildCommand();
});

describe('a run that is killed goes on bit for bit', () => {
  // The long test has all ways, with more moments of each.
  it('--strategy ddp --ranks 3', async () => {
    await expectExactResume(script, '--strategy ddp --ranks 3', [{ savingFrom: 5, numFiles: 1 }]);
  });

  // These run among the long tests.
  const own = [
    ['two-moons.mjs', '--strategy offload --slices 2', ''],
    [
      'state-space.mjs',
      '--strategy ddp --ranks 2',
      '--seq 8 --data tooling/reference/data/tiny/text.txt',
    ],
  ] as const;
  it.runIf(isLong).each(own)('the module %s by %s', async (name, way, data) => {
    const model = `--model ${ROOT}examples/${name} --device cpu --threads 1 --batch 6`;
    const line = `${model} ${data.replace('tooling', `${ROOT}tooling`)}`.trim();
    await expectExactResume(script, way, [{ step: 3 }], () => line);
  });
});

/** Resolves to the exit code and everything that was printed. */
async function command(
  flags: string,
  onOutput: (said: string, pid: number) => void = () => {},
): Promise<{ readonly code: number | null; readonly said: string }> {
  const child = startRun(script, flags.split(' '));
  let said = '';
  for (const stream of [child.stdout!, child.stderr!]) {
    stream.on('data', (chunk: Buffer) => {
      said += chunk.toString();
      onOutput(said, child.pid!);
    });
  }
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, said };
}

/** Calls `act` once, when `text` has been printed. */
function onceSaid(text: RegExp, act: (pid: number) => void): (said: string, pid: number) => void {
  let isDone = false;
  return (said, pid) => {
    if (!isDone && text.test(said)) {
      isDone = true;
      act(pid);
    }
  };
}

const lines = (out: string) =>
  readFileSync(join(out, 'metrics.jsonl'), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as { readonly step: number; readonly loss: number });

describe('a run that is asked to stop', () => {
  // command.test.ts has a run that SIGTERM stops.
  const SIGNALS = [
    ['SIGINT', 'ws', 130, 'Ctrl-C'],
    ['SIGTERM', 'shm', 143, 'SIGTERM'],
  ] as const;
  it.each(SIGNALS.slice(0, isLong ? 2 : 1))(
    'a run stopped by %s over %s saves and says how it goes on',
    async (signal, transport, exit, by) => {
      const out = join(root, transport);
      const flags = `${tinyFlags(root)} --ranks 2 --transport ${transport} --out ${out} --steps`;
      let ranks: readonly number[] = [];
      const stop = onceSaid(/^step +3\//m, (pid) => {
        ranks = childrenOf(pid);
        process.kill(-pid, signal); // so do a terminal and a supervisor
      });
      const { code, said } = await command(`${flags} 100000`, stop);
      const [, step, save] = new RegExp(
        `^Stopped by ${by} after step (\\d+), saved in (.*)\\.$`,
        'm',
      ).exec(said)!;
      expect(code).toBe(exit);
      expect(ranks).toHaveLength(transport === 'ws' ? 2 : 0);
      expect(ranks.filter(isAlive)).toEqual([]);
      expect(save).toBe(join(out, `saves/step-${step!.padStart(6, '0')}`));
      expect(readdirSync(join(out, 'saves'))).toHaveLength(1);
      expect(existsSync(join(out, 'summary.json'))).toBe(false);
      expect(said).toMatch(
        new RegExp(`^Go on with: (npx )?shardweave train ${flags} 100000 --resume auto\\n$`, 'm'),
      );
      // The resumed run takes two more steps.
      const more = Number(step) + 2;
      const again = await command(`${flags} ${more} --resume auto`);
      expect(again.said).toMatch(
        new RegExp(`^Going on from ${save}, behind step ${step}\\.$`, 'm'),
      );
      expect(again.code).toBe(0);
      expect(lines(out).map((line) => line.step)).toEqual(
        Array.from({ length: more }, (_, i) => i + 1),
      );
    },
  );

  // In the short run run-end.test.ts has who asks a second time, and when.
  it.runIf(isLong)(
    'a run asked again, after it has answered, ends at once without a save',
    async () => {
      const out = join(root, 'again');
      // An injected delay makes steps so long that no machine ends one first.
      const flags = `${tinyFlags(root)} --out ${out} --save-every 1000 --steps 100000 --inject-delay-ms 100`;
      let isAsked = false;
      const { code, said } = await command(flags, (text, pid) => {
        if (!isAsked && /^step +1\//m.test(text)) {
          isAsked = true;
          process.kill(pid, 'SIGTERM');
        }
        if (/^SIGTERM: .*Another signal/m.test(text)) {
          const again = setInterval(() => {
            try {
              process.kill(pid, 'SIGINT');
            } catch {
              clearInterval(again);
            }
          }, 50);
        }
      });
      expect(code).toBe(130);
      expect(said).not.toContain('saved in');
    },
  );
});

describe('--max-restarts', () => {
  it('goes on from the last save after a rank was killed, as if it had not been', async () => {
    const out = join(root, 'restarted');
    const flags = `${tinyFlags(root)} --ranks 2 --steps 12`;
    const kill = onceSaid(/^step +5\//m, (pid) => {
      process.kill(childrenOf(pid)[1]!, 'SIGKILL');
    });
    const { code, said } = await command(
      `${flags} --transport ws --out ${out} --save-every 2 --max-restarts 1`,
      kill,
    );
    expect(said).toMatch(/^rank \d of 2 was killed by SIGKILL after step \d+; .*$/m);
    expect(said).toMatch(/^Starting again from the last save \(restart 1 of 1\)\.$/m);
    expect(said).toMatch(/^Going on from .*\/saves\/step-00000[2468], behind step [2468]\.$/m);
    expect(code).toBe(0);
    const unbroken = told(await runLine(flags));
    expect(lines(out).map(({ step, loss }) => ({ step, loss }))).toEqual(
      unbroken.map(({ step, loss }) => ({ step, loss })),
    );
  });
});
