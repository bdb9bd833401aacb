// Tests of faults run jobs of rank processes. This starts the processes, joins them into jobs,
// hears how their calls ended, and sees which sockets they hold. The processes outlive a job, so
// that the next can be built from them.

import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import type { ProxiedLinks } from '@shardweave/collectives/testing-node';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './bundle-program.js';
import type { Ended, RankCommand, RankReport } from './fault-messages.js';

/** How long a rank may take to join, or to exit by itself, on a shared machine. */
const PATIENCE_MS = 120_000;

const SECRET = 'of this very test';

export class RankProcess {
  readonly child: ChildProcess;
  /**
   * The address at which the others reach this process. For rank 0 it is that of the rendezvous.
   */
  readonly address: string;
  readonly #reports: RankReport[] = [];
  #onReport: (() => void) | undefined;
  links: ProxiedLinks | undefined;
  rank = -1;

  constructor(child: ChildProcess, address: string) {
    this.child = child;
    this.address = address;
    child.on('message', (report: RankReport) => {
      if (report.type === 'route') {
        void this.#route(report);
      } else {
        this.#reports.push(report);
        this.#onReport?.();
      }
    });
  }

  say(command: RankCommand): void {
    this.child.send(command);
  }

  /** Resolves with the next report of this type; reports of other types before it are dropped. */
  async hears<T extends RankReport['type']>(
    type: T,
    limitMs = PATIENCE_MS,
  ): Promise<Extract<RankReport, { type: T }>> {
    const end = Date.now() + limitMs;
    for (;;) {
      const index = this.#reports.findIndex((report) => report.type === type);
      if (index >= 0) {
        return this.#reports.splice(0, index + 1).at(-1) as Extract<RankReport, { type: T }>;
      }
      const problem = this.#reports.find((report) => report.type === 'unjoined');
      const leftMs = end - Date.now();
      if (leftMs <= 0 || problem !== undefined) {
        const seen = JSON.stringify(problem ?? this.#reports.map((report) => report.type));
        throw new Error(`rank ${this.rank}: no "${type}" within ${limitMs} ms, but ${seen}`);
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, leftMs);
        this.#onReport = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /** Returns states of the process's TCP sockets as in /proc/net/tcp, where '0A' is LISTEN. */
  sockets(): string[] {
    const { pid } = this.child;
    const inodes = new Set(
      readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
        try {
          return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.slice(1) ?? [];
        } catch {
          return []; // It was closed meanwhile.
        }
      }),
    );
    return ['tcp', 'tcp6'].flatMap((table) =>
      readFileSync(`/proc/${pid}/net/${table}`, 'utf8')
        .split('\n')
        .slice(1)
        .map((line) => line.trim().split(/\s+/))
        .filter((fields) => inodes.has(fields[9] ?? ''))
        .map((fields) => fields[3]!),
    );
  }

  async #route(report: Extract<RankReport, { type: 'route' }>): Promise<void> {
    const address = await this.links!.route(this.rank, report.target, report.address);
    this.say({ type: 'routed', id: report.id, address });
  }
}

export interface JoinOptions {
  readonly links?: ProxiedLinks;
  /**
   * The port of a `serveRendezvous`, for the first attempt. By default rank 0 hosts the rendezvous.
   */
  readonly rendezvousPort?: number;
  readonly optionsOf?: (
    rank: number,
  ) => Pick<Extract<RankCommand, { type: 'join' }>, 'listen' | 'silenceMs'>;
}

/** Starts processes, and ends all of them with `dispose`. */
export class RankProcesses implements AsyncDisposable {
  readonly #all: RankProcess[] = [];
  #folder: string | undefined;
  #script: Promise<string> | undefined;
  readonly #relays: ChildProcess[] = [];
  #numJobs = 0;

  /** Starts `count` processes, on this host or on those that `hosts` names. */
  async start(
    count: number,
    hosts?: readonly {
      readonly address: string;
      fork(script: string, args: readonly string[]): ChildProcess;
    }[],
  ): Promise<RankProcess[]> {
    this.#script ??= this.#bundle('fault-rank.ts');
    const script = await this.#script;
    return Array.from({ length: count }, (_, i) => {
      const host = hosts?.[i];
      const child = host === undefined ? fork(script) : host.fork(script, []);
      const started = new RankProcess(child, host?.address ?? '127.0.0.1');
      this.#all.push(started);
      return started;
    });
  }

  /** Starts a process that hosts the rendezvous of one job without being a rank of it. */
  async startRelay(worldSize: number): Promise<{ child: ChildProcess; port: number }> {
    const child = fork(await this.#bundle('relay-process.ts'), [String(worldSize), SECRET]);
    this.#relays.push(child);
    const [{ port }] = (await once(child, 'message')) as [{ port: number }];
    return { child, port };
  }

  /** Joins processes without a job into a new one. Their ranks are their order. */
  async join(processes: readonly RankProcess[], options: JoinOptions = {}): Promise<void> {
    const { links, rendezvousPort, optionsOf } = options;
    const attempt = this.#numJobs++;
    const join = (process: RankProcess, rank: number, port: number) => {
      process.rank = rank;
      process.links = links;
      process.say({
        type: 'join',
        rank,
        worldSize: processes.length,
        address: processes[0]!.address,
        port,
        secret: SECRET,
        attempt,
        isRouted: links !== undefined,
        ...(rendezvousPort === undefined ? {} : { rendezvous: 'elsewhere' }),
        ...optionsOf?.(rank),
      });
    };
    join(processes[0]!, 0, rendezvousPort ?? 0);
    const port = rendezvousPort ?? (await processes[0]!.hears('listening')).port;
    for (const [i, process] of processes.slice(1).entries()) {
      join(process, i + 1, port);
    }
    await Promise.all(processes.map((process) => process.hears('joined')));
  }

  /** Resolves with how the calls of all these processes ended. */
  async ended(processes: readonly RankProcess[], limitMs?: number): Promise<Ended[]> {
    return Promise.all(processes.map((process) => process.hears('ended', limitMs)));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const child of [...this.#all.map((rank) => rank.child), ...this.#relays]) {
      if (child.exitCode === null && child.signalCode === null) {
        const gone = once(child, 'exit');
        child.kill('SIGKILL');
        await gone;
      }
    }
  }

  async #bundle(program: string): Promise<string> {
    this.#folder ??= newFolder();
    const outfile = join(this.#folder, `${program}.mjs`);
    await bundleProgram(new URL(program, import.meta.url), outfile);
    return outfile;
  }
}
