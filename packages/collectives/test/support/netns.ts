// Tests get several hosts on this machine as network namespaces, each with a veth cable to a switch
// in a namespace of its own. None of it is visible outside. It needs root on Linux: see
// lanProblem().

import { type ChildProcess, execFileSync, type ForkOptions, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** One host: a namespace with a loopback of its own and one network card, eth0. */
export interface LanHost {
  /** The namespace's name, for `ip netns exec`. */
  readonly name: string;
  /** The IPv4 address of eth0, by which all hosts of a LAN reach each other. */
  readonly address: string;
  /** Starts a Node script on this host, with a channel for messages; its pid is the script's. */
  fork(script: string, args: readonly string[], options?: ForkOptions): ChildProcess;
  /**
   * Pulls the host's cable out of the switch or plugs it in again. No FIN or RST is sent: packets
   * vanish.
   */
  setCable(state: 'in' | 'out'): void;
}

export interface Lan<Host = LanHost> extends Disposable {
  readonly hosts: readonly Host[];
}

const PREFIX = 'shardweave';
let numLans = 0;

/**
 * Returns why no LAN can be made here, or undefined where it can. The reason becomes part of a
 * skipped test's name.
 */
export function lanProblem(): string | undefined {
  if (process.platform !== 'linux') {
    return `network namespaces need Linux, this is ${process.platform}`;
  }
  try {
    createLan(1)[Symbol.dispose]();
    return undefined;
  } catch (error) {
    return `no network namespaces: ${(error as Error).message.trim().split('\n').at(-1)}`;
  }
}

export interface LanOptions {
  /** Names by which the hosts know each other, in order. They get an /etc/hosts of their own. */
  readonly hostNames?: readonly string[];
  /** Further lines of these files, such as a second address of localhost. */
  readonly hostLines?: readonly string[];
}

/** Makes hosts 10.77.0.1 and up. They last until they are disposed, or until this process exits. */
export function createLan(
  numHosts: number,
  { hostNames = [], hostLines = [] }: LanOptions = {},
): Lan {
  removeLeftovers();
  const lan = `${PREFIX}-${process.pid}-${numLans++}`;
  const hub = `${lan}-hub`;
  const names = Array.from({ length: numHosts }, (_, i) => `${lan}-${i}`);
  const dispose = () => {
    process.off('exit', dispose);
    removeNamespaces([...names, hub]);
  };
  process.on('exit', dispose);
  try {
    ip([...[hub, ...names].map((name) => `netns add ${name}`)]);
    ip(['link add switch type bridge', 'link set switch up'], hub);
    const hosts = names.map((name, i) => {
      const [port, address] = [`port${i}`, addressOf(i)];
      ip(
        [
          `link add ${port} type veth peer name eth0 netns ${name}`,
          `link set ${port} master switch up`,
        ],
        hub,
      );
      writeHosts(name, [...namesOf(hostNames), ...hostLines]);
      ip(['link set lo up', `addr add ${address}/24 dev eth0`, 'link set eth0 up'], name);
      return {
        ...hostIn(name, address),
        setCable: (state: 'in' | 'out') =>
          ip([`link set ${port} ${state === 'in' ? 'up' : 'down'}`], hub),
      };
    });
    return { hosts, [Symbol.dispose]: dispose };
  } catch (error) {
    dispose();
    throw error;
  }
}

/**
 * Makes hosts whose packets reach each other so many milliseconds later. It takes Python, since not
 * every kernel can delay packets itself.
 */
export async function createSlowLan(
  numHosts: number,
  delayMs: number,
): Promise<Lan<Omit<LanHost, 'setCable'>>> {
  removeLeftovers();
  const lan = `${PREFIX}-${process.pid}-${numLans++}`;
  const names = Array.from({ length: numHosts }, (_, i) => `${lan}-${i}`);
  ip(names.map((name) => `netns add ${name}`));
  const program = fileURLToPath(new URL('slow-switch.py', import.meta.url));
  const slowSwitch = spawn('python3', [program, String(delayMs), ...names], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const dispose = () => {
    process.off('exit', dispose);
    slowSwitch.kill();
    removeNamespaces(names);
  };
  process.on('exit', dispose);
  const ended = once(slowSwitch, 'exit').then(() => dispose());
  await Promise.race([once(slowSwitch.stdout, 'data'), ended]);
  return { hosts: names.map((name, i) => hostIn(name, addressOf(i))), [Symbol.dispose]: dispose };
}

function hostIn(name: string, address: string): Omit<LanHost, 'setCable'> {
  return {
    name,
    address,
    fork: (script, args, options = {}) =>
      fork(script, args, {
        ...options,
        execPath: 'ip',
        execArgv: ['netns', 'exec', name, process.execPath, ...(options.execArgv ?? [])],
      }),
  };
}

function ip(commands: readonly string[], namespace?: string): void {
  const where = namespace === undefined ? [] : ['-n', namespace];
  execFileSync('ip', [...where, '-batch', '-'], {
    input: `${commands.join('\n')}\n`,
    stdio: ['pipe', 'ignore', 'pipe'],
  });
}

/**
 * Writes files that `ip netns exec` shows over /etc, for its process only: those in
 * /etc/netns/NAME.
 */
function writeHosts(namespace: string, lines: readonly string[]): void {
  if (lines.length > 0) {
    mkdirSync(`/etc/netns/${namespace}`, { recursive: true });
    const text = ['127.0.0.1 localhost', ...lines, ''].join('\n');
    writeFileSync(`/etc/netns/${namespace}/hosts`, text);
  }
}

const namesOf = (hostNames: readonly string[]) =>
  hostNames.map((name, i) => `${addressOf(i)} ${name}`);

function addressOf(host: number): string {
  return `10.77.0.${host + 1}`;
}

/** Removes namespaces with their cables and cards. Processes in them must have ended. */
function removeNamespaces(names: readonly string[]): void {
  for (const name of names) {
    rmSync(`/etc/netns/${name}`, { recursive: true, force: true });
    try {
      execFileSync('ip', ['netns', 'delete', name], { stdio: 'ignore' });
    } catch {
      // It was never made, or is gone.
    }
  }
}

/** Removes the namespaces of processes that were killed before they could. */
function removeLeftovers(): void {
  const listed = execFileSync('ip', ['netns', 'list'], { encoding: 'utf8' });
  const isAlive = (pid: number) => {
    try {
      process.kill(pid, 0);
      return true;
    } catch {
      return false;
    }
  };
  removeNamespaces(
    [...listed.matchAll(new RegExp(`^${PREFIX}-(\\d+)-\\S+`, 'gm'))]
      .filter(([, pid]) => !isAlive(Number(pid)))
      .map(([name]) => name),
  );
}
