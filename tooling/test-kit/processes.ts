// Programs of tests in processes of their own.

import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { newFolder } from './folders.ts';

/** Bundles a program over the packages' sources, and returns the path of the result. */
export async function bundle(program: URL): Promise<string> {
  const outfile = join(newFolder(), 'program.mjs');
  await build({
    entryPoints: [fileURLToPath(program)],
    conditions: ['@shardweave/source'],
    alias: { vitest: fileURLToPath(new URL('outside-vitest.ts', import.meta.url)) },
    external: ['bufferutil', 'utf-8-validate', 'koffi'],
    // The CommonJS packages in the bundle call require.
    banner: {
      js: "import { createRequire as bundleRequire } from 'node:module'; const require = bundleRequire(import.meta.url);",
    },
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    logLevel: 'error',
    outfile,
  });
  return outfile;
}

/** How a process ended. */
export interface Ended {
  readonly exitCode: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly printed: readonly string[];
  readonly complained: string;
}

/** A bundled program that runs in a process of its own. */
export class RunningProgram {
  readonly ended: Promise<Ended>;
  readonly #printed: string[] = [];
  readonly #child: ChildProcess;

  constructor(program: string, args: readonly string[], flags: readonly string[] = []) {
    // It gets this process's flags, since its products must be fused where those of this one are.
    const child = spawn(process.execPath, [...process.execArgv, ...flags, program, ...args]);
    this.#child = child;
    let complained = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      complained += text;
    });
    createInterface(child.stdout).on('line', (line) => {
      this.#printed.push(line);
    });
    this.ended = new Promise((resolve) => {
      child.on('close', (exitCode, signal) => {
        resolve({ exitCode, signal, printed: this.#printed, complained });
      });
    });
  }

  /** Ends the process if it has not ended by itself. */
  kill(): void {
    this.#child.kill('SIGKILL');
  }

  /** Resolves with the first group of `pattern` once a line matches. */
  async line(pattern: RegExp): Promise<string> {
    for (;;) {
      const found = this.#printed.flatMap((text) => pattern.exec(text)?.slice(1) ?? [])[0];
      if (found !== undefined) {
        return found;
      }
      if (this.#child.exitCode !== null) {
        throw new Error((await this.ended).complained);
      }
      await new Promise<void>((resolve) => {
        this.#child.stdout!.once('data', () => resolve());
        this.#child.once('close', () => resolve());
      });
    }
  }
}
