// Runs a command line in a terminal of its own, whose keys and whose line the test holds. `script`
// makes the terminal; every Debian and Ubuntu has it.

import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';

/** A variable that every process of the command inherits, however deep it is started. */
const MARK = 'SHARDWEAVE_TEST_TERMINAL';

export interface TerminalCommandOptions {
  readonly cwd: string;
  /** Whether the line is typed into an interactive shell, as people do. */
  readonly isTyped?: boolean;
  /** Variables beside those of this process. */
  readonly env?: NodeJS.ProcessEnv;
}

export class TerminalCommand {
  readonly #mark = randomUUID();
  readonly #script: ChildProcess;
  readonly #exited: Promise<unknown[]>;
  #said = '';

  constructor(line: string, { cwd, isTyped = false, env }: TerminalCommandOptions) {
    const shell = isTyped ? 'exec sh -i' : line;
    this.#script = spawn('script', ['-q', '-e', '-c', shell, '/dev/null'], {
      cwd,
      env: { ...process.env, ...env, SHELL: '/bin/sh', TERM: 'xterm', [MARK]: this.#mark },
      stdio: ['pipe', 'pipe', 'ignore'],
    });
    this.#exited = once(this.#script, 'exit');
    this.#script.stdout!.on('data', (chunk: Buffer) => {
      this.#said += chunk.toString();
    });
    this.#script.stdin!.on('error', () => {}); // the terminal may be gone
    if (isTyped) {
      this.type(`${line}\n`);
    }
  }

  /** What the terminal has shown. */
  get said(): string {
    return this.#said;
  }

  type(keys: string): void {
    this.#script.stdin!.write(keys);
  }

  /** Resolves when the terminal shows `text`. */
  async shows(text: RegExp): Promise<void> {
    while (!text.test(this.#said)) {
      if (this.#script.exitCode !== null || this.#script.signalCode !== null) {
        throw new Error(`the command ended before it showed ${text}: ${this.#said}`);
      }
      await delay(5);
    }
  }

  /** Closes the terminal under the command, as a window or a lost connection does. */
  hangUp(): void {
    this.#script.kill('SIGKILL');
  }

  /** Resolves to the exit code of the command line, when all of its processes are gone. */
  async end(): Promise<number | null> {
    const [code] = (await this.#exited) as [number | null];
    while (this.processes().length > 0) {
      await delay(20);
    }
    return code;
  }

  /** The command lines of the command's processes, with their ids. */
  processes(): { readonly pid: number; readonly line: string }[] {
    return readdirSync('/proc').flatMap((name) => {
      try {
        const environment = readFileSync(`/proc/${name}/environ`, 'latin1').split('\0');
        const isOurs = environment.includes(`${MARK}=${this.#mark}`);
        const line = readFileSync(`/proc/${name}/cmdline`, 'latin1').replaceAll('\0', ' ');
        return isOurs ? [{ pid: Number(name), line }] : [];
      } catch {
        return []; // no process, or it has left
      }
    });
  }

  /** Ends whatever is left, for tests that failed. */
  [Symbol.dispose](): void {
    for (const { pid } of this.processes()) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // it has left
      }
    }
  }
}
