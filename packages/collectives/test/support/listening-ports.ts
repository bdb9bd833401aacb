// Tells by /proc on which TCP ports processes listen.

import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';

const LISTEN = '0A';

/** Returns why that can't be told here, or undefined where it can. */
export function listeningProblem(): string | undefined {
  return existsSync('/proc/self/net/tcp') ? undefined : ': this system has no /proc/net/tcp';
}

/** Returns the ports on which any of the processes listens. */
export function listeningPorts(pids: readonly number[]): number[] {
  return pids.flatMap((pid) => {
    const links = readdirSync(`/proc/${pid}/fd`).map((fd) => linkOf(`/proc/${pid}/fd/${fd}`));
    const inodes = new Set(links.map((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1]));
    const lines = ['tcp', 'tcp6'].flatMap((name) =>
      readFileSync(`/proc/${pid}/net/${name}`, 'latin1').trim().split('\n').slice(1),
    );
    return lines.flatMap((line) => {
      const fields = line.trim().split(/\s+/);
      const isOurs = fields[3] === LISTEN && inodes.has(fields[9]);
      return isOurs ? [Number.parseInt(fields[1]!.split(':')[1]!, 16)] : [];
    });
  });
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return ''; // it was closed meanwhile
  }
}
