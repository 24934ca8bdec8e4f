import { ServerConnection } from '@jupyterlab/services';
import { expect, it } from 'vitest';
import { Api, ApiError } from '../src/api';

let requests: Request[] = [];

/** An Api whose server gives this answer. */
function api(answer: Response): Api {
  requests = [];
  const fetch = async (request: RequestInfo | URL): Promise<Response> => {
    requests.push(request as Request);
    return answer;
  };
  const settings = { baseUrl: 'http://localhost/user/ada/', token: 'secret', fetch };
  return new Api(ServerConnection.makeSettings(settings));
}

const NAMED = { nonce: 'n=1', client_id: 'me', path: 'a b/ä.ipynb' };

it('hands the bytes of a document over, and gets the id of the copy', async () => {
  const answer = Response.json({ recovery_id: 'abc' }, { status: 201 });
  expect(await api(answer).handOver('k1', NAMED, '{"cells": []}')).toBe('abc');
  const [request] = requests;
  const url = new URL(request?.url ?? '');
  expect(request?.method).toBe('POST');
  expect(url.pathname).toBe('/user/ada/gpu-guard/api/v1/kernels/k1/copies');
  expect(Object.fromEntries(url.searchParams)).toMatchObject(NAMED);
  expect(await request?.text()).toBe('{"cells": []}');
});

it('says why the server would not take a copy', async () => {
  const reason = { code: 'old_nonce', params: {}, text: 'too late' };
  const answer = Response.json({ message: 'too late', reason }, { status: 409 });
  const error = await api(answer)
    .handOver('k1', NAMED, 'x')
    .catch((refused: unknown) => refused);
  expect(error).toBeInstanceOf(ApiError);
  expect(error).toMatchObject({ status: 409, message: 'too late', reason });
});
