// Notices that npm is gone. A signal to `npx shardweave` or `npm run train` ends npm and the shell
// between, and not the command, which nobody would then end.

import { readFileSync } from 'node:fs';

/** The time between two looks, each of which takes some microseconds. */
const LOOK_MS = 250;
/** A word of npm's command line: `npm run train`, which is its title, or the path of its script. */
const NPM = /(^|\/)(p?npm|npx|yarn)(-cli)?(\.[cm]?js)?( |$)/;

/** Whether npm, or what npm started this command with, has left since this was made. */
export type NpmWatch = () => boolean;

/**
 * Looks for npm above this process; undefined where there is none. Without /proc the parent is
 * taken for npm where the environment is npm's.
 */
export function npmAbove(env: NodeJS.ProcessEnv): NpmWatch | undefined {
  if (env.npm_command === undefined && env.npm_lifecycle_event === undefined) {
    return undefined;
  }
  const { ppid } = process;
  const line = commandLine(ppid);
  // npm starts `sh -c COMMAND`. A shell in between that is not of this form, such as a script of
  // the user's that leaves a run behind, may end as it likes.
  const isShell = line?.[1] === '-c';
  const npm = isShell ? parentOf(ppid) : ppid;
  const words = npm === undefined ? undefined : commandLine(npm);
  if (words !== undefined && !words.slice(0, 2).some((word) => NPM.test(word))) {
    return undefined;
  }
  return () => process.ppid !== ppid || (isShell && parentOf(ppid) !== npm);
}

/** Calls `onGone` once, when the watch says that npm has left. It holds no event loop. */
export function whenGone(isGone: NpmWatch, onGone: () => void): void {
  const timer = setInterval(() => {
    if (isGone()) {
      clearInterval(timer);
      onGone();
    }
  }, LOOK_MS);
  timer.unref();
}

/** The words with which a process was started; undefined where nothing tells. */
function commandLine(pid: number): readonly string[] | undefined {
  return readProc(`/proc/${pid}/cmdline`)?.split('\0');
}

function parentOf(pid: number): number | undefined {
  const status = readProc(`/proc/${pid}/status`);
  const found = status === undefined ? null : /^PPid:\s+(\d+)$/m.exec(status);
  return found === null ? undefined : Number(found[1]);
}

function readProc(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined; // another system, or the process has left
  }
}
