// This server plays the Hub: its API, redirects to another origin for large files, ranges, hashes,
// refusals, and connections that break.
import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface PlayedModel {
  readonly files: Readonly<Record<string, Uint8Array | string>>;
  /** The token without which the model is not shown. */
  readonly token?: string;
  /** Whether its terms are still to be accepted. */
  readonly isGated?: boolean;
  /** Other fields of what the API tells of it. */
  readonly info?: Readonly<Record<string, unknown>>;
}

/** The bytes of a piece where a server sends with a pace. */
export const PACED_BYTES = 2 ** 16;
const API = /^\/api\/((?:datasets\/)?[^/]+\/[^/]+)\/(revision|tree|paths-info)\/([^/]+)$/;
/** Files of at least so many bytes are large ones, named by their SHA-256. */
const LARGE_BYTES = 1024;

export class PlayedHub implements AsyncDisposable {
  readonly #server: Server;
  readonly #files: Server;
  /** The commits of models by `org/name`, and of data sets by `datasets/org/name`; newest last. */
  readonly #models = new Map<string, { commit: string; model: PlayedModel }[]>();
  /** The bytes of file contents that were sent. */
  bytesSent = 0;
  /** All requests, as METHOD and path. */
  readonly requests: string[] = [];
  /** Statuses that the next requests are answered with, and headers. */
  readonly answers: { status: number; headers?: Record<string, string> }[] = [];
  /** The next contents break off after so many bytes each. */
  readonly breaks: number[] = [];
  /**
   * Called before each piece of a large file with the bytes that were sent, and waited for;
   * resolves to whether it is sent.
   */
  pace: ((sent: number) => Promise<boolean>) | undefined;
  /** Whether contents are sent whole whatever range is asked for. */
  ignoresRanges = false;
  /** Turns a byte of each content over. */
  corrupts = false;
  /** Answers requests of other kinds; returns whether this is one. */
  alsoAnswers: ((request: IncomingMessage, response: ServerResponse) => boolean) | undefined;

  private constructor() {
    this.#server = createServer((request, response) => this.#answer(request, response));
    this.#files = createServer((request, response) => this.#sendLarge(request, response));
  }

  static async open(): Promise<PlayedHub> {
    const hub = new PlayedHub();
    for (const server of [hub.#server, hub.#files]) {
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    }
    return hub;
  }

  get endpoint(): string {
    return addressOf(this.#server);
  }

  /** Publishes a new commit on the main branch of a repository; returns the commit. */
  push(repo: string, model: PlayedModel): string {
    const commits = this.#models.get(repo) ?? [];
    const commit = createHash('sha1').update(`${repo} ${commits.length}`).digest('hex');
    this.#models.set(repo, [...commits, { commit, model }]);
    return commit;
  }

  /** The newest commit of a model, with its number. */
  newest(repo: string) {
    const commits = this.#models.get(repo) ?? [];
    return { ...commits.at(-1), count: commits.length };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of [this.#server, this.#files]) {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url!, this.endpoint);
    this.requests.push(`${request.method} ${url.pathname}`);
    const forced = this.answers.shift();
    if (forced !== undefined) {
      response.writeHead(forced.status, forced.headers).end();
      return;
    }
    if (this.alsoAnswers?.(request, response) === true) {
      return;
    }
    const [api, file] = [
      API.exec(url.pathname.replace('/api/models/', '/api/')),
      /^\/((?:datasets\/)?[^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(url.pathname),
    ];
    const repo = api?.[1] ?? file?.[1] ?? '';
    const commits = this.#models.get(repo);
    const token = commits?.at(-1)?.model.token;
    if (commits === undefined || (token && request.headers.authorization !== `Bearer ${token}`)) {
      response.writeHead(401, { 'x-error-code': 'RepoNotFound' }).end();
      return;
    }
    const revision = decodeURIComponent(api?.[3] ?? file![2]!);
    const found = commits.find(({ commit }) => commit === revision);
    const entry = revision === 'main' ? commits.at(-1) : found;
    if (entry === undefined) {
      response.writeHead(404, { 'x-error-code': 'RevisionNotFound' }).end();
    } else if (api?.[2] === 'revision') {
      const ids = { _id: '1', id: repo, modelId: repo, sha: entry.commit };
      response.end(JSON.stringify({ ...ids, ...entry.model.info }));
    } else if (entry.model.isGated) {
      response.writeHead(403, { 'x-error-code': 'GatedRepo' }).end();
    } else if (api !== null) {
      void this.#list(entry, request, response);
    } else {
      this.#sendFile(entry, file![3]!, { request, response, repo });
    }
  }

  /** Lists all files of a commit, or those that the request names. */
  async #list(
    { commit, model }: { readonly commit: string; readonly model: PlayedModel },
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const asked = Buffer.concat(await request.toArray()).toString();
    const { paths } = (asked === '' ? {} : JSON.parse(asked)) as { readonly paths?: string[] };
    const { searchParams } = new URL(request.url!, this.endpoint);
    const isDeep = paths !== undefined || searchParams.get('recursive') === 'true';
    const entries = Object.entries(model.files)
      .filter(([path]) => isDeep || !path.includes('/'))
      .filter(([path]) => paths?.includes(path) ?? true);
    const lastCommit = { id: commit, title: '', date: new Date(0).toISOString() };
    response.end(JSON.stringify(entries.map((entry) => ({ ...listing(entry), lastCommit }))));
  }

  #sendFile(
    { commit, model }: { readonly commit: string; readonly model: PlayedModel },
    path: string,
    {
      request,
      response,
      repo,
    }: {
      readonly request: IncomingMessage;
      readonly response: ServerResponse;
      readonly repo: string;
    },
  ): void {
    const content = Buffer.from(model.files[path] ?? '');
    if (content.byteLength >= LARGE_BYTES) {
      const place = `${addressOf(this.#files)}/${encodeURIComponent(repo)}/${commit}/${path}`;
      response.writeHead(302, { location: place }).end();
      return;
    }
    this.#send(content, request, response);
  }

  /** The other origin, which must not hear the token. */
  #sendLarge(request: IncomingMessage, response: ServerResponse): void {
    this.requests.push(`${request.method} large ${request.headers.authorization ?? ''}`.trim());
    const [repo, commit, ...path] = request.url!.slice(1).split('/').map(decodeURIComponent);
    const entry = this.#models.get(repo!)!.find((one) => one.commit === commit)!;
    this.#send(Buffer.from(entry.model.files[path.join('/')]!), request, response);
  }

  #send(content: Buffer, request: IncomingMessage, response: ServerResponse): void {
    const [, first, last] = /^bytes=(\d+)-(\d*)/.exec(request.headers.range ?? '') ?? [];
    const isRange = first !== undefined && !this.ignoresRanges;
    const from = isRange ? Number(first) : 0;
    const end = isRange && last ? Number(last) + 1 : content.byteLength;
    const bytes = Buffer.from(content.subarray(from, end));
    if (this.corrupts && bytes.byteLength > 0) {
      bytes[0]! ^= 1;
    }
    const length = { 'content-length': String(bytes.byteLength), etag: `"${nameOf(content)}"` };
    const range = {
      'content-range': `bytes ${from}-${end - 1}/${content.byteLength}`,
    };
    response.writeHead(isRange ? 206 : 200, isRange ? { ...length, ...range } : length);
    const most = content.byteLength >= LARGE_BYTES ? this.breaks.shift() : undefined;
    if (this.pace !== undefined && content.byteLength >= LARGE_BYTES) {
      void this.#sendPaced(bytes, response, this.pace);
      return;
    }
    const sent = most === undefined ? bytes : bytes.subarray(0, most);
    this.bytesSent += sent.byteLength;
    if (most === undefined) {
      response.end(sent);
    } else {
      response.write(sent, () => request.socket.destroy());
    }
  }

  async #sendPaced(
    bytes: Buffer,
    response: ServerResponse,
    pace: (sent: number) => Promise<boolean>,
  ): Promise<void> {
    for (let at = 0; at < bytes.byteLength && (await pace(at)); at += PACED_BYTES) {
      const piece = bytes.subarray(at, at + PACED_BYTES);
      this.bytesSent += piece.byteLength;
      response.write(piece);
    }
    response.end();
  }
}

function listing([path, content]: [string, Uint8Array | string]) {
  const bytes = Buffer.from(content);
  const size = bytes.byteLength;
  const oid = nameOf(bytes);
  const lfs = size < LARGE_BYTES ? {} : { lfs: { oid, size, pointerSize: 130 } };
  return { type: 'file', path, size, oid, ...lfs };
}

/** The hash by which the Hub names a content. */
function nameOf(bytes: Uint8Array): string {
  return bytes.byteLength < LARGE_BYTES
    ? createHash('sha1').update(`blob ${bytes.byteLength}\0`).update(bytes).digest('hex')
    : createHash('sha256').update(bytes).digest('hex');
}

function addressOf(server: Server): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
