// This runs a program as a process and takes what it printed.

import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';

export interface ProgramResult {
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Resolves when `child`, which has pipes, has ended. Kills it after `limitMs`. */
export async function programResult(child: ChildProcess, limitMs: number): Promise<ProgramResult> {
  const texts = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name]?.setEncoding('utf8').on('data', (text: string) => {
      texts[name] += text;
    });
  }
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs);
  const [exitCode] = (await once(child, 'close')) as [number | null];
  clearTimeout(timer);
  return { exitCode, ...texts };
}
