// Every way in which a terminal, a reader or a supervisor ends a run, over each transport, with and
// without npm in between: the run is saved, or ends at once where somebody insists, and nothing of
// it is left.

import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeAll, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { buildCommand } from './support/build-command.js';
import { leftRun, SAVED } from './support/left-run.js';
import { ROOT } from './support/run-flags.js';
import { TerminalCommand } from './support/terminal-command.js';
import { tinyFlags } from './support/tiny-run.js';

vi.setConfig({ testTimeout: 300_000 });

const hasMpirun = spawnSync('mpirun', ['--version']).error === undefined;
const TRANSPORTS = ['memory', 'shm', 'ws', ...(hasMpirun ? ['mpi'] : [])];
/** koffi is a dependency of a package in which the bundle does not lie. */
const env = { NODE_PATH: `${ROOT}packages/collectives/node_modules` };
/** How people start the command, in a folder where it is installed. */
const STARTS = {
  node: 'node node_modules/shardweave/main.mjs train',
  'npm run': 'npm run train --',
  npx: 'npx shardweave train',
} as const;

const root = newFolder();
let script: string;
beforeAll(async () => {
  script = await buildCommand();
});

/** Makes a folder in which the built command is installed, with a script of npm's that runs it. */
function installed(name: string): string {
  const cwd = join(root, name.replaceAll(/\W+/g, '-'));
  const own = join(cwd, 'node_modules/shardweave');
  const bin = join(cwd, 'node_modules/.bin');
  mkdirSync(own, { recursive: true });
  mkdirSync(bin);
  const scripts = { train: STARTS.node };
  writeFileSync(join(cwd, 'package.json'), JSON.stringify({ private: true, scripts }));
  const pack = { name: 'shardweave', version: '1.0.0', bin: 'main.mjs' };
  writeFileSync(join(own, 'package.json'), JSON.stringify(pack));
  writeFileSync(join(own, 'main.mjs'), `import ${JSON.stringify(script)};\n`);
  writeFileSync(join(bin, 'shardweave'), `#!/bin/sh\nexec node ${own}/main.mjs "$@"\n`);
  chmodSync(join(bin, 'shardweave'), 0o755);
  return cwd;
}

/** The processes that are npm itself. */
const npmOf = (command: TerminalCommand) =>
  command.processes().filter(({ line }) => /^npm (run|exec)/.test(line));

interface Edge {
  readonly edge: string;
  /** What stands behind the command line. */
  readonly pipe?: string;
  readonly isTyped?: boolean;
  /** Flags that make steps long. */
  readonly flags?: string;
  readonly isSaved?: boolean;
  /** What is done to the run once it has shown a step. */
  readonly act: (command: TerminalCommand) => Promise<void>;
}

const answered = /: ending the step on its way, then saving\./;
const LONG_STEPS = '--inject-delay-ms 300';
const isOfRun = ({ line }: { readonly line: string }) => line.includes(' train ');

/** Types Ctrl-C and, once it has been answered, again until the run is gone. */
async function insist(command: TerminalCommand): Promise<void> {
  command.type('\x03');
  await command.shows(answered);
  while (command.processes().some(isOfRun)) {
    command.type('\x03');
    await delay(100);
  }
}

const EDGES: readonly Edge[] = [
  { edge: 'Ctrl-C', act: async (command) => command.type('\x03') },
  { edge: 'Ctrl-C with tee', pipe: '2>&1 | tee log', act: async (command) => command.type('\x03') },
  { edge: 'Ctrl-C twice', flags: LONG_STEPS, isSaved: false, act: insist },
  {
    edge: 'Ctrl-C twice with tee',
    pipe: '2>&1 | tee log',
    flags: LONG_STEPS,
    isSaved: false,
    act: insist,
  },
  { edge: 'a closed terminal', act: async (command) => command.hangUp() },
  { edge: 'a dropped ssh', isTyped: true, act: async (command) => command.hangUp() },
  {
    edge: 'a dropped ssh with tee',
    isTyped: true,
    pipe: '2>&1 | tee log',
    act: async (command) => command.hangUp(),
  },
  {
    edge: 'a dropped ssh that is told again',
    isTyped: true,
    flags: LONG_STEPS,
    act: async (command) => {
      command.hangUp();
      for (let runs = command.processes(); runs.some(isOfRun); runs = command.processes()) {
        await delay(600); // longer than the time within which signals are one wish
        // mpirun has a session of its own, of which a terminal signals nothing.
        for (const { pid } of runs.filter((one) => isOfRun(one) && !/^mpirun/.test(one.line))) {
          signalIfThere(pid, 'SIGHUP');
        }
      }
    },
  },
  {
    edge: 'a terminal that is closed behind Ctrl-C',
    isTyped: true,
    act: async (command) => {
      command.type('\x03');
      await command.shows(answered);
      command.hangUp();
    },
  },
  { edge: 'head', pipe: '2>&1 | head -20', act: async () => {} },
];

const cases = TRANSPORTS.flatMap((transport) =>
  Object.keys(STARTS).map((start) => [transport, start as keyof typeof STARTS] as const),
);

describe.each(cases)('over %s by %s', (transport, start) => {
  const line = (cwd: string, more = '') => {
    const flags = `${tinyFlags(cwd)} --steps 100000 --save-every 100000 --out r`;
    return `${STARTS[start]} ${flags} --ranks 2 --transport ${transport} ${more}`;
  };

  it.each(EDGES)('$edge', async ({ edge, pipe = '', flags = '', ...how }) => {
    const { isTyped = false, isSaved = true, act } = how;
    const cwd = installed(`${transport} ${start} ${edge}`);
    using command = new TerminalCommand(`${line(cwd, flags)} ${pipe}`, { cwd, isTyped, env });
    await command.shows(/step +2\//);
    await act(command);
    if (isTyped) {
      command.hangUp(); // the shell is left alone where the command has ended
    }
    await command.end();
    if (isSaved) {
      expect(leftRun(join(cwd, 'r'))).toEqual(SAVED);
    } else {
      expect(leftRun(join(cwd, 'r')).saves).toEqual([]);
    }
  });

  it.each(start === 'node' ? [] : (['SIGTERM', 'SIGHUP', 'SIGKILL'] as const))(
    '%s to npm',
    async (signal) => {
      const cwd = installed(`${transport} ${start} ${signal}`);
      using command = new TerminalCommand(`${line(cwd)} > log 2>&1`, { cwd, isTyped: true, env });
      while (!/^step +2\//m.test(textOf(join(cwd, 'log')))) {
        await delay(20);
      }
      const [npm] = npmOf(command);
      process.kill(npm!.pid, signal);
      while (command.processes().some(({ line: words }) => words.includes('main.mjs'))) {
        await delay(20);
      }
      command.hangUp();
      await command.end();
      expect(leftRun(join(cwd, 'r'))).toEqual(SAVED);
      expect(textOf(join(cwd, 'log'))).toMatch(/^Go on with: np/m);
    },
  );
});

function textOf(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

function signalIfThere(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It has left.
  }
}
