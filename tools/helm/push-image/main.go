// Command push-image copies an image from a directory in the OCI layout, as
// `cargo xtask image` writes it, to a registry:
//
//	push-image [-plain-http] DIRECTORY REGISTRY/NAME:TAG
//
// It prints the reference by digest. Who pushes is told by the files that
// `docker login` and `helm registry login` write.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"
)

func main() {
	plain := flag.Bool("plain-http", false, "speak to the registry without TLS")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: push-image [-plain-http] DIRECTORY REGISTRY/NAME:TAG")
		os.Exit(2)
	}
	pushed, err := push(context.Background(), flag.Arg(0), flag.Arg(1), *plain)
	if err != nil {
		fmt.Fprintf(os.Stderr, "push-image: %s: %v\n", flag.Arg(1), err)
		os.Exit(1)
	}
	fmt.Println(pushed)
}

func push(ctx context.Context, directory, reference string, plain bool) (string, error) {
	layout, err := oci.NewFromFS(ctx, os.DirFS(directory))
	if err != nil {
		return "", fmt.Errorf("read the layout in %s: %w", directory, err)
	}
	tag, err := onlyTag(ctx, layout)
	if err != nil {
		return "", fmt.Errorf("read the layout in %s: %w", directory, err)
	}
	repository, err := remote.NewRepository(reference)
	if err != nil {
		return "", err
	}
	login, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return "", err
	}
	repository.PlainHTTP = plain
	repository.Client = &auth.Client{
		Client:     retry.DefaultClient,
		Cache:      auth.NewCache(),
		Credential: credentials.Credential(login),
	}
	var image ocispec.Descriptor
	image, err = oras.Copy(ctx, layout, tag, repository, repository.Reference.Reference, oras.DefaultCopyOptions)
	if err != nil {
		return "", err
	}
	name := repository.Reference
	return fmt.Sprintf("%s/%s@%s", name.Registry, name.Repository, image.Digest), nil
}

// A layout of ours holds one image.
func onlyTag(ctx context.Context, layout *oci.ReadOnlyStore) (string, error) {
	var found []string
	err := layout.Tags(ctx, "", func(tags []string) error {
		found = append(found, tags...)
		return nil
	})
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("one image is expected, and there are %d", len(found))
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}
