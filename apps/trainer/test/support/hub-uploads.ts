// The part of the played Hub that is written to: accounts, repositories that are created, large
// files by Git LFS in a storage of another origin, and commits.
import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { PlayedHub, PlayedModel } from './hub-server.ts';

interface Account {
  readonly name: string;
  readonly orgs?: readonly string[];
  readonly role?: 'read' | 'write';
}

/** A line of a commit. */
interface Operation {
  readonly key: 'header' | 'file' | 'lfsFile' | 'deletedFile';
  readonly value: Readonly<Record<string, string>>;
}

interface Call {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly path: string;
  readonly account: Account;
}

/** Files of at least so many bytes are sent to the storage, and of twice as many in parts. */
const LARGE_BYTES = 1024;
const PART_BYTES = 2048;

export class PlayedUploads implements AsyncDisposable {
  readonly #hub: PlayedHub;
  readonly #storage: Server;
  /** The large files that have arrived, by their hashes. */
  readonly #objects = new Map<string, Buffer>();
  readonly #parts = new Map<string, Buffer[]>();
  /** The accounts by their tokens. */
  readonly accounts = new Map<string, Account>();
  /** The bodies of all commits. */
  readonly commits: Operation[][] = [];
  /** The bytes that have come to the storage. */
  bytesStored = 0;
  /** Called at each request of the storage; true breaks the connection. */
  onStore: (() => boolean) | undefined;

  private constructor(hub: PlayedHub) {
    this.#hub = hub;
    hub.alsoAnswers = (request, response) => this.#answer(request, response);
    this.#storage = createServer((request, response) => void this.#store(request, response));
  }

  static async open(hub: PlayedHub): Promise<PlayedUploads> {
    const uploads = new PlayedUploads(hub);
    await new Promise<void>((resolve) => uploads.#storage.listen(0, '127.0.0.1', resolve));
    return uploads;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#storage.closeAllConnections();
    await new Promise((resolve) => this.#storage.close(resolve));
  }

  #answer(request: IncomingMessage, response: ServerResponse): boolean {
    const path = new URL(request.url!, this.#hub.endpoint).pathname;
    const isWho = path === '/api/whoami-v2';
    if (request.method !== 'POST' && !isWho) {
      return false;
    }
    if (/\/(paths-info|tree)\//.test(path)) {
      return false;
    }
    const token = request.headers.authorization?.replace('Bearer ', '') ?? '';
    const account = this.accounts.get(token);
    if (account === undefined) {
      refuse(response, 401, 'Invalid username or password.');
    } else if (isWho) {
      const orgs = (account.orgs ?? []).map((name) => ({ type: 'org', name }));
      const auth = { type: 'access_token', accessToken: { role: account.role ?? 'write' } };
      send(response, { type: 'user', name: account.name, orgs, auth });
    } else {
      void this.#write({ request, response, path, account });
    }
    return true;
  }

  async #write({ request, response, path, account }: Call): Promise<void> {
    const body = Buffer.concat(await request.toArray()).toString();
    const repo = /^(?:\/api\/models)?\/([^/]+\/[^/]+?)(?:\.git)?\//.exec(path)?.[1] ?? '';
    const asked = path.endsWith('create') ? JSON.parse(body) : undefined;
    const [owner] = asked === undefined ? repo.split('/') : [asked.organization];
    if (account.role === 'read' || ![account.name, ...(account.orgs ?? [])].includes(owner!)) {
      refuse(response, 403, `You don't have the rights to write under ${owner}`);
    } else if (asked !== undefined) {
      this.#create(asked, response);
    } else if (path.includes('/preupload/')) {
      const { files } = JSON.parse(body) as { files: { path: string; size: number }[] };
      const mode = ({ size }: { size: number }) => (size < LARGE_BYTES ? 'regular' : 'lfs');
      send(response, { files: files.map((of) => ({ path: of.path, uploadMode: mode(of) })) });
    } else if (path.endsWith('/info/lfs/objects/batch')) {
      this.#batch(JSON.parse(body), response);
    } else {
      this.#commit(repo, body, response);
    }
  }

  #create(
    { name, organization, visibility }: Readonly<Record<string, string>>,
    response: ServerResponse,
  ): void {
    const repo = `${organization}/${name}`;
    if (this.#hub.newest(repo).count > 0) {
      refuse(response, 409, 'You already created this model repo');
      return;
    }
    const info = { private: visibility === 'private' };
    this.#hub.push(repo, { files: { '.gitattributes': '*.safetensors filter=lfs' }, info });
    send(response, { url: `${this.#hub.endpoint}/${repo}`, id: repo });
  }

  /** Tells where each object goes; none for those that are there. */
  #batch(
    { objects }: { readonly objects: readonly { readonly oid: string; readonly size: number }[] },
    response: ServerResponse,
  ): void {
    const { port } = this.#storage.address() as AddressInfo;
    const place = (oid: string, rest = '') =>
      `http://127.0.0.1:${port}/${oid}?signed=secret-${oid.slice(0, 4)}${rest}`;
    const upload = (oid: string, size: number) => {
      const count = Math.ceil(size / PART_BYTES);
      const parts = Array.from({ length: count }, (_, i) => [
        String(i + 1).padStart(5, '0'),
        place(oid, `&part=${i + 1}`),
      ]);
      return count < 2
        ? { href: place(oid) }
        : {
            href: place(oid, '&complete=1'),
            header: { chunk_size: String(PART_BYTES), ...Object.fromEntries(parts) },
          };
    };
    send(response, {
      transfer: 'basic',
      objects: objects.map(({ oid, size }) => ({
        ...{ oid, size },
        ...(this.#objects.has(oid) ? {} : { actions: { upload: upload(oid, size) } }),
      })),
    });
  }

  /** The storage, which must not hear the token, and wants to be told each length. */
  async #store(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url!, 'http://storage');
    const oid = url.pathname.slice(1);
    const { authorization, 'content-length': length } = request.headers;
    const note = [request.method, 'storage', authorization].filter(Boolean).join(' ');
    this.#hub.requests.push(note);
    if (this.onStore?.() === true) {
      request.socket.destroy();
      return;
    }
    if (length === undefined || !url.searchParams.has('signed')) {
      response.writeHead(411).end();
      return;
    }
    const body = Buffer.concat(await request.toArray().catch(() => []));
    const part = url.searchParams.get('part');
    this.bytesStored += request.method === 'PUT' ? body.byteLength : 0;
    const parts = this.#parts.get(oid) ?? [];
    this.#parts.set(oid, parts);
    if (part !== null) {
      parts[Number(part) - 1] = body;
      response.writeHead(200, { etag: `"${part}"` }).end();
      return;
    }
    const whole = url.searchParams.has('complete') ? Buffer.concat(parts) : body;
    if (createHash('sha256').update(whole).digest('hex') !== oid) {
      response.writeHead(400).end();
      return;
    }
    this.#objects.set(oid, whole);
    send(response, {});
  }

  #commit(repo: string, body: string, response: ServerResponse): void {
    const { commit, model } = this.#hub.newest(repo);
    const lines = body.split('\n').map((line) => JSON.parse(line) as Operation);
    const { parentCommit } = lines[0]!.value;
    if (parentCommit !== undefined && parentCommit !== commit) {
      refuse(response, 412, 'A commit has happened since.');
      return;
    }
    const files: Record<string, Uint8Array | string> = { ...model?.files };
    for (const { key, value } of lines.slice(1)) {
      if (key === 'file') {
        files[value.path!] = Buffer.from(value.content!, 'base64');
      } else if (key === 'lfsFile') {
        files[value.path!] = this.#objects.get(value.oid!)!;
      } else {
        delete files[value.path!];
      }
    }
    this.commits.push(lines);
    const commitOid = this.#hub.push(repo, { ...(model as PlayedModel), files });
    send(response, { commitOid, commitUrl: `${this.#hub.endpoint}/${repo}/commit/${commitOid}` });
  }
}

function send(response: ServerResponse, json: object): void {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(json));
}

function refuse(response: ServerResponse, status: number, error: string): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ error }));
}
